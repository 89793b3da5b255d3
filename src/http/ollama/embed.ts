// Ollama's POST /api/embed and /api/embeddings
import type { Context } from "hono";
import {
  OllamaEmbeddingsRequest,
  type OllamaEmbeddingsResponse,
  OllamaEmbedRequest,
  type OllamaEmbedResponse,
} from "../../api/ollama/embed.ts";
import type { Priority } from "../../engine/protocol.ts";
import type { HttpEnv } from "../frame/env.ts";
import { readRequest } from "../frame/json-body.ts";
import type { Generating } from "../frame/serving.ts";
import { embedded } from "../openai/embeddings.ts";
import { keepAliveOf } from "./generate.ts";
import { nanoseconds } from "./writer.ts";

export function ollamaEmbed(serving: Generating, ceiling: Priority) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const startMs = performance.now();
    const request = await readRequest(c, serving, OllamaEmbedRequest);
    const made = await embedded(c, serving, ceiling, {
      ...request,
      keepAliveMs: keepAliveOf(request, c),
    });
    return c.json({
      model: made.model,
      embeddings: made.vectors.map((vector) => [...vector]),
      total_duration: nanoseconds(performance.now() - startMs),
      load_duration: nanoseconds(made.loadMs),
      prompt_eval_count: made.tokens,
    } satisfies OllamaEmbedResponse);
  };
}

/** Handles the older endpoint, which embeds a single text. */
export function ollamaEmbeddings(serving: Generating, ceiling: Priority) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const request = await readRequest(c, serving, OllamaEmbeddingsRequest);
    const { vectors } = await embedded(c, serving, ceiling, {
      model: request.model,
      input: [request.prompt],
      keepAliveMs: keepAliveOf(request, c),
    });
    return c.json({ embedding: [...vectors[0]!] } satisfies OllamaEmbeddingsResponse);
  };
}
