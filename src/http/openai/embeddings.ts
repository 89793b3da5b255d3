// POST /v1/embeddings
import type { Context } from "hono";
import { EmbeddingRequest, type EmbeddingResponse } from "../../api/openai/embeddings.ts";
import type { Prompt } from "../../api/prompts.ts";
import { textTokens } from "../../conversation/prompt.ts";
import type { Priority } from "../../engine/protocol.ts";
import { vectorsOf } from "../../serve/vectors.ts";
import type { HttpEnv } from "../frame/env.ts";
import { badRequest } from "../frame/errors.ts";
import { readRequest } from "../frame/json-body.ts";
import type { Generating } from "../frame/serving.ts";
import { type PrefillModel, prefilled, totalLength } from "../generate/prefill.ts";

export function embeddings(serving: Generating, ceiling: Priority) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const request = await readRequest(c, serving, EmbeddingRequest);
    const { encoding_format: encoding } = request;
    const { model, vectors, tokens } = await embedded(c, serving, ceiling, request);
    return c.json({
      object: "list",
      model,
      data: vectors.map((vector, index) => ({
        object: "embedding",
        index,
        embedding: encoding === "base64" ? base64(vector) : [...vector],
      })),
      usage: { prompt_tokens: tokens, total_tokens: tokens },
    } satisfies EmbeddingResponse);
  };
}

export type EmbeddingInput = PrefillModel & {
  input: readonly Prompt[];
  dimensions?: number | undefined;
};

export type Embedded = {
  model: string;
  vectors: Float32Array[];
  /** Number of tokens of all texts. */
  tokens: number;
  /** Time spent waiting for the model to load. */
  loadMs: number;
};

/** Embeds texts, for any API. */
export async function embedded(
  c: Context<HttpEnv>,
  serving: Generating,
  ceiling: Priority,
  { input, dimensions, ...asked }: EmbeddingInput,
): Promise<Embedded> {
  return await prefilled(c, serving, ceiling, asked, async ({ model, loadMs, encode, read }) => {
    const { embedding } = model.text;
    if (!embedding) {
      throw badRequest("model", "The model is not an embedding model.", "not_an_embedder");
    }
    const prompts = await textTokens({ prompts: input }, model, encode);
    const events = await read(prompts, embedding);
    // The model's vector size is known only from the engine's answer.
    const { length } = events[0]!.vector!;
    if (dimensions !== undefined && dimensions > length) {
      const message = `Invalid 'dimensions': expected at most ${length}, the size of the model's vectors.`;
      throw badRequest("dimensions", message, "invalid_value");
    }
    const vectors = vectorsOf(events, embedding, dimensions);
    return { model: model.name, vectors, tokens: totalLength(prompts), loadMs };
  });
}

function base64(vector: Float32Array): string {
  return Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength).toString("base64");
}
