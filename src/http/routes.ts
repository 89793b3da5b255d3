// The table of routes, from which the app, the OpenAPI document and the documentation are built.
import {
  CountTokensRequest,
  CountTokensResponse,
  MessagesEvent,
  MessagesRequest,
  MessagesResponse,
} from "../api/anthropic/messages.ts";
import { BatchList, BatchObject, BatchRequest } from "../api/openai/batches.ts";
import { ChatChunk, ChatRequest, ChatResponse } from "../api/openai/chat.ts";
import {
  CompletionChunk,
  CompletionRequest,
  CompletionResponse,
} from "../api/openai/completions.ts";
import { EmbeddingRequest, EmbeddingResponse } from "../api/openai/embeddings.ts";
import { FileDeleted, FileList, FileObject, FileUpload } from "../api/openai/files.ts";
import { Model, ModelList } from "../api/openai/models.ts";
import {
  InputItemList,
  ResponseDeleted,
  ResponseEvent,
  ResponseObject,
  ResponsesRequest,
} from "../api/openai/responses.ts";
import {
  DetokenizeRequest,
  DetokenizeResponse,
  TokenizeRequest,
  TokenizeResponse,
} from "../api/openai/tokenize.ts";
import { LoadRequest, PsResponse, UnloadRequest, UnloadResponse } from "../api/owner/admin.ts";
import { Health } from "../api/owner/health.ts";
import { anthropicDialect } from "./anthropic/dialect.ts";
import { countTokens, messagesCodec } from "./anthropic/messages.ts";
import { docsPage } from "./docs-page.ts";
import { openAiEvents } from "./frame/dialect.ts";
import { health } from "./frame/health.ts";
import {
  bodyErrors,
  generationErrors,
  modelErrors,
  type Route,
  tokenErrors,
} from "./frame/route.ts";
import { generate } from "./generate/generate.ts";
import { ollamaRoutes } from "./ollama/routes.ts";
import { cancelBatch, createBatch, getBatch, listBatches } from "./openai/batches.ts";
import { chatCodec } from "./openai/chat.ts";
import { completionCodec } from "./openai/completions.ts";
import { embeddings } from "./openai/embeddings.ts";
import { deleteFile, fileContent, getFile, listFiles, uploadFile } from "./openai/files.ts";
import { getModel, listModels } from "./openai/models.ts";
import { rerankRoutes } from "./openai/rerank-routes.ts";
import { responsesCodec } from "./openai/responses.ts";
import { deleteResponse, getResponse, listInputItems } from "./openai/stored-responses.ts";
import { detokenize, tokenize } from "./openai/tokenize.ts";
import { askedAt, openApiDocument } from "./openapi.ts";
import { loadModel, ps, unloadModel } from "./owner/admin.ts";
import { consoleRoutes } from "./owner/console-routes.ts";
import { ownerRoutes } from "./owner/routes.ts";

const storeErrors = [503, 507];

const chatCompletion = {
  method: "post",
  tag: "Text",
  request: ChatRequest,
  response: ChatResponse,
  event: ChatChunk,
  example: { messages: [{ role: "user", content: "What is the capital of France?" }] },
  errors: generationErrors,
  isLimited: true,
  promptParam: "messages",
  handler: generate(chatCodec),
} as const;

const textCompletion = {
  method: "post",
  tag: "Text",
  request: CompletionRequest,
  response: CompletionResponse,
  event: CompletionChunk,
  example: { prompt: "The capital of France is", max_tokens: 16 },
  errors: generationErrors,
  isLimited: true,
  promptParam: "prompt",
  handler: generate(completionCodec),
} as const;

export const routes: readonly Route[] = [
  {
    ...chatCompletion,
    path: "/v1/chat/completions",
    summary: "Generate the next message of a chat",
    isForBatches: true,
  },
  { ...textCompletion, path: "/v1/completions", summary: "Continue a text", isForBatches: true },
  {
    ...chatCompletion,
    path: "/v1/batch/chat/completions",
    summary: "Like /v1/chat/completions, at low priority",
    priority: "LOW",
  },
  {
    ...textCompletion,
    path: "/v1/batch/completions",
    summary: "Like /v1/completions, at low priority",
    priority: "LOW",
  },
  {
    method: "post",
    path: "/v1/messages",
    summary: "Generate the next message of a chat (Anthropic's API)",
    tag: "Text",
    request: MessagesRequest,
    response: MessagesResponse,
    event: MessagesEvent,
    example: {
      max_tokens: 100,
      messages: [{ role: "user", content: "What is the capital of France?" }],
    },
    dialect: anthropicDialect,
    errors: generationErrors,
    isLimited: true,
    promptParam: "messages",
    isForBatches: true,
    handler: generate(messagesCodec),
  },
  {
    method: "post",
    path: "/v1/messages/count_tokens",
    summary: "Count the tokens of a prompt (Anthropic's API)",
    tag: "Tokens",
    request: CountTokensRequest,
    response: CountTokensResponse,
    example: { messages: [{ role: "user", content: "What is the capital of France?" }] },
    dialect: anthropicDialect,
    errors: tokenErrors,
    isLimited: true,
    promptParam: "messages",
    isClosedByDrain: true,
    handler: countTokens,
  },
  {
    method: "post",
    path: "/v1/responses",
    summary: "Generate the next response of a conversation (OpenAI's Responses API)",
    tag: "Text",
    request: ResponsesRequest,
    response: ResponseObject,
    event: ResponseEvent,
    example: { input: "What is the capital of France?" },
    dialect: openAiEvents,
    errors: generationErrors,
    isLimited: true,
    promptParam: "input",
    isForBatches: true,
    handler: generate(responsesCodec),
  },
  {
    method: "get",
    path: "/v1/responses/{id}/input_items",
    summary: "List the input items of a stored response",
    tag: "Text",
    response: InputItemList,
    errors: [400, 404],
    handler: listInputItems,
  },
  {
    method: "get",
    path: "/v1/responses/{id}",
    summary: "Get a stored response",
    tag: "Text",
    response: ResponseObject,
    errors: [400, 404],
    handler: getResponse,
  },
  {
    method: "delete",
    path: "/v1/responses/{id}",
    summary: "Delete a stored response",
    tag: "Text",
    response: ResponseDeleted,
    errors: [404],
    handler: deleteResponse,
  },
  {
    method: "post",
    path: "/v1/embeddings",
    summary: "Embed texts, if the model is an embedding model",
    tag: "Text",
    request: EmbeddingRequest,
    response: EmbeddingResponse,
    example: { input: "The capital of France" },
    errors: generationErrors,
    isLimited: true,
    promptParam: "input",
    isForBatches: true,
    handler: embeddings,
  },
  ...rerankRoutes,
  {
    method: "post",
    path: "/v1/files",
    summary: "Upload a file of requests",
    tag: "Files and batches",
    request: FileUpload,
    requestType: "multipart/form-data",
    response: FileObject,
    example: { purpose: "batch", file: "@requests.jsonl" },
    errors: [...bodyErrors, ...storeErrors],
    isClosedByDrain: true,
    handler: uploadFile,
  },
  {
    method: "get",
    path: "/v1/files",
    summary: "List the files of the key",
    tag: "Files and batches",
    response: FileList,
    errors: [400, 503],
    handler: listFiles,
  },
  {
    method: "get",
    path: "/v1/files/{id}/content",
    summary: "Download a file",
    tag: "Files and batches",
    mediaType: "application/octet-stream",
    errors: [404, 503],
    handler: fileContent,
  },
  {
    method: "get",
    path: "/v1/files/{id}",
    summary: "Describe a file",
    tag: "Files and batches",
    response: FileObject,
    errors: [404, 503],
    handler: getFile,
  },
  {
    method: "delete",
    path: "/v1/files/{id}",
    summary: "Delete a file; a batch that reads it continues",
    tag: "Files and batches",
    response: FileDeleted,
    errors: [404, 503],
    handler: deleteFile,
  },
  {
    method: "post",
    path: "/v1/batches",
    summary: "Create a batch: answer the requests of a file at low priority",
    tag: "Files and batches",
    request: BatchRequest,
    response: BatchObject,
    example: {
      input_file_id: "file-abc",
      endpoint: "/v1/chat/completions",
      completion_window: "24h",
    },
    errors: [...bodyErrors, ...storeErrors],
    isClosedByDrain: true,
    handler: createBatch,
  },
  {
    method: "get",
    path: "/v1/batches",
    summary: "List the batches of the key",
    tag: "Files and batches",
    response: BatchList,
    errors: [400, 503],
    handler: listBatches,
  },
  {
    method: "get",
    path: "/v1/batches/{id}",
    summary: "Get a batch with its progress",
    tag: "Files and batches",
    response: BatchObject,
    errors: [404, 503],
    handler: getBatch,
  },
  {
    method: "post",
    path: "/v1/batches/{id}/cancel",
    summary: "Cancel a batch; completed answers are kept",
    tag: "Files and batches",
    response: BatchObject,
    errors: [404, 503, 507],
    handler: cancelBatch,
  },
  ...ollamaRoutes,
  {
    method: "post",
    path: "/tokenize",
    summary: "Tokenize a text or a chat",
    tag: "Tokens",
    request: TokenizeRequest,
    response: TokenizeResponse,
    example: { prompt: "The capital of France" },
    errors: tokenErrors,
    isLimited: true,
    promptParam: "prompt",
    isClosedByDrain: true,
    handler: tokenize,
  },
  {
    method: "post",
    path: "/detokenize",
    summary: "Turn tokens into text",
    tag: "Tokens",
    request: DetokenizeRequest,
    response: DetokenizeResponse,
    example: { tokens: [504, 3575, 282] },
    errors: tokenErrors,
    isLimited: true,
    promptParam: "tokens",
    isClosedByDrain: true,
    handler: detokenize,
  },
  {
    method: "get",
    path: "/v1/models",
    summary: "List the available models",
    tag: "Models",
    response: ModelList,
    handler: listModels,
  },
  {
    method: "get",
    path: "/v1/models/{id}",
    summary: "Describe a model",
    tag: "Models",
    response: Model,
    errors: [404],
    handler: getModel,
  },
  {
    method: "post",
    path: "/models/load",
    summary: "Load a model before the first request for it",
    tag: "Models",
    request: LoadRequest,
    response: Model,
    example: { model: "default" },
    errors: modelErrors,
    access: "owner",
    isClosedByDrain: true,
    handler: loadModel,
  },
  {
    method: "post",
    path: "/models/unload",
    summary: "Unload a model and free its memory",
    tag: "Models",
    request: UnloadRequest,
    response: UnloadResponse,
    example: { model: "default" },
    errors: [...modelErrors, 409],
    access: "owner",
    handler: unloadModel,
  },
  {
    method: "get",
    path: "/ps",
    summary: "Loaded models, memory, and running and waiting requests",
    tag: "Server",
    response: PsResponse,
    errors: [503],
    access: "owner",
    handler: ps,
  },
  ...ownerRoutes,
  ...consoleRoutes,
  {
    method: "get",
    path: "/health",
    summary: "Whether the server can answer requests",
    tag: "Server",
    response: Health,
    alsoStatus: [503],
    access: "open",
    isQuiet: true,
    handler: health,
  },
  {
    method: "get",
    path: "/metrics",
    summary: "Prometheus metrics: all of them for the owner, other keys get their own",
    tag: "Server",
    mediaType: "text/plain",
    isQuiet: true,
    handler:
      ({ metrics }) =>
      async (c) =>
        c.body(await metrics.text(c.get("caller")), 200, { "Content-Type": metrics.contentType }),
  },
  {
    method: "get",
    path: "/openapi.json",
    summary: "This API as an OpenAPI document",
    tag: "Server",
    access: "open",
    handler({ ring }) {
      return (c) => c.json(openApiDocument(routes, askedAt(c, ring)));
    },
  },
  {
    method: "get",
    path: "/docs",
    summary: "This API as a web page",
    tag: "Server",
    mediaType: "text/html",
    access: "open",
    handler({ ring }) {
      const policy = "default-src 'none'; style-src 'unsafe-inline'";
      return (c) => {
        const page = docsPage(openApiDocument(routes, askedAt(c, ring)));
        return c.html(page, 200, { "Content-Security-Policy": policy });
      };
    },
  },
];
