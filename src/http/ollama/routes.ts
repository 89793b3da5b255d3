// The routes of Ollama's APIs.

import {
  OllamaEmbeddingsRequest,
  OllamaEmbeddingsResponse,
  OllamaEmbedRequest,
  OllamaEmbedResponse,
} from "../../api/ollama/embed.ts";
import {
  OllamaChatRequest,
  OllamaChatResponse,
  OllamaGenerateRequest,
  OllamaGenerateResponse,
} from "../../api/ollama/generate.ts";
import {
  OllamaDeleteRequest,
  OllamaPs,
  OllamaPullRequest,
  OllamaPullStatus,
  OllamaShow,
  OllamaShowRequest,
  OllamaTags,
  OllamaVersion,
} from "../../api/ollama/models.ts";
import { bodyErrors, generationErrors, type Route } from "../frame/route.ts";
import { ollamaDialect } from "./dialect.ts";
import { ollamaEmbed, ollamaEmbeddings } from "./embed.ts";
import { ollamaChat, ollamaGenerate } from "./generate.ts";
import { deleteModel, listLoaded, listTags, ollamaVersionHandler, showModel } from "./models.ts";
import { ollamaPull } from "./pull.ts";

/** Fields shared by all these routes. */
const ollama = { tag: "Ollama", dialect: ollamaDialect, access: "key" } as const;

export const ollamaRoutes: readonly Route[] = [
  {
    ...ollama,
    method: "post",
    path: "/api/chat",
    summary: "Generate the next message of a chat (Ollama's API)",
    request: OllamaChatRequest,
    response: OllamaChatResponse,
    event: OllamaChatResponse,
    example: { messages: [{ role: "user", content: "What is the capital of France?" }] },
    errors: [...generationErrors, 409],
    isLimited: true,
    promptParam: "messages",
    handler: ollamaChat,
  },
  {
    ...ollama,
    method: "post",
    path: "/api/generate",
    summary: "Answer or continue a prompt (Ollama's API)",
    request: OllamaGenerateRequest,
    response: OllamaGenerateResponse,
    event: OllamaGenerateResponse,
    example: { prompt: "What is the capital of France?" },
    errors: [...generationErrors, 409],
    isLimited: true,
    promptParam: "prompt",
    handler: ollamaGenerate,
  },
  {
    ...ollama,
    method: "post",
    path: "/api/embed",
    summary: "Embed texts (Ollama's API)",
    request: OllamaEmbedRequest,
    response: OllamaEmbedResponse,
    example: { input: "The capital of France" },
    errors: generationErrors,
    isLimited: true,
    promptParam: "input",
    handler: ollamaEmbed,
  },
  {
    ...ollama,
    method: "post",
    path: "/api/embeddings",
    summary: "Embed a text (Ollama's older API)",
    request: OllamaEmbeddingsRequest,
    response: OllamaEmbeddingsResponse,
    example: { prompt: "The capital of France" },
    errors: generationErrors,
    isLimited: true,
    promptParam: "prompt",
    handler: ollamaEmbeddings,
  },
  {
    ...ollama,
    method: "get",
    path: "/api/tags",
    summary: "List the available models (Ollama's API)",
    response: OllamaTags,
    handler: listTags,
  },
  {
    ...ollama,
    method: "post",
    path: "/api/show",
    summary: "Describe a model and its capabilities (Ollama's API)",
    request: OllamaShowRequest,
    response: OllamaShow,
    example: { model: "default" },
    errors: [...bodyErrors, 404],
    handler: showModel,
  },
  {
    ...ollama,
    method: "get",
    path: "/api/ps",
    summary: "List the loaded models (Ollama's API)",
    response: OllamaPs,
    errors: [503],
    handler: listLoaded,
  },
  {
    ...ollama,
    method: "post",
    path: "/api/pull",
    summary: "Pull a model from Hugging Face (Ollama's API)",
    request: OllamaPullRequest,
    response: OllamaPullStatus,
    event: OllamaPullStatus,
    example: { model: "org/name" },
    errors: [...bodyErrors, 502, 503],
    access: "owner",
    isClosedByDrain: true,
    handler: ollamaPull,
  },
  {
    ...ollama,
    method: "delete",
    path: "/api/delete",
    summary: "Delete a model from the cache (Ollama's API)",
    request: OllamaDeleteRequest,
    example: { model: "org/name" },
    errors: [...bodyErrors, 404, 409],
    access: "owner",
    handler: deleteModel,
  },
  {
    ...ollama,
    method: "get",
    path: "/api/version",
    summary: "The version of Ollama's API",
    response: OllamaVersion,
    isQuiet: true,
    handler: ollamaVersionHandler,
  },
];
