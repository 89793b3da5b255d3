// POST /v1/embeddings: the vector that a model makes of a text.
import type { Context } from "hono";
import { EmbeddingRequest, type EmbeddingResponse } from "../api/embeddings.ts";
import type { Prompt } from "../api/prompts.ts";
import { checkPromptTokens, saltOf } from "../conversation/engine-request.ts";
import { textTokens } from "../conversation/prompt.ts";
import type { Priority } from "../engine/protocol.ts";
import { Vectors } from "../serve/vectors.ts";
import type { HttpEnv } from "./env.ts";
import { badRequest } from "./errors.ts";
import { Generation } from "./generation.ts";
import { readRequest } from "./json-body.ts";
import { lowestOf } from "./priority.ts";
import type { Serving } from "./serving.ts";

export function embeddings(serving: Serving, ceiling: Priority) {
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

export type EmbeddingInput = {
  model: string;
  input: readonly Prompt[];
  dimensions?: number | undefined;
  /** How long the model stays loaded without requests from now on. */
  keepAliveMs?: number | undefined;
};

export type Embedded = {
  model: string;
  vectors: Float32Array[];
  /** Of all texts. */
  tokens: number;
  /** How long it took until the model was loaded. */
  loadMs: number;
};

/** The vectors of a request of any API. */
export async function embedded(
  c: Context<HttpEnv>,
  serving: Serving,
  ceiling: Priority,
  { model: name, input, dimensions, keepAliveMs }: EmbeddingInput,
): Promise<Embedded> {
  const startMs = performance.now();
  const caller = c.get("caller");
  const priority = lowestOf(caller.tier, ceiling);
  const generation = new Generation(c, serving, priority);
  try {
    const model = await generation.use(name, keepAliveMs);
    const loadMs = performance.now() - startMs;
    const { embedding } = model.text;
    if (!embedding) {
      throw badRequest("model", "The model does not make embeddings.", "not_an_embedder");
    }
    const prompts = await textTokens({ prompts: input }, model.info.maxLength, (work) =>
      generation.encode(model, work),
    );
    checkPromptTokens(prompts, model);
    const common = {
      name: c.get("record").id,
      priority,
      client: generation.client,
      salt: saltOf(caller.name),
    };
    const vectors = generation.begin(
      () =>
        new Vectors(serving.engine, {
          model: model.name,
          embedding,
          requests: prompts.map((prompt) => ({ ...common, prompt: prompt.slice() })),
          dimensions,
        }),
    );
    const made = await vectors.read();
    // The vectors' size is known only now.
    const { length } = made[0]!;
    if (dimensions !== undefined && dimensions > length) {
      const message = `Invalid 'dimensions': expected at most ${length}, the size of the model's vectors.`;
      throw badRequest("dimensions", message, "invalid_value");
    }
    generation.end();
    return { model: model.name, vectors: made, tokens: vectors.usage.promptTokens, loadMs };
  } catch (error) {
    generation.end(error);
    throw error;
  }
}

function base64(vector: Float32Array): string {
  return Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength).toString("base64");
}
