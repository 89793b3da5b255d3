// The lifetime of requests that only compute prompts (embeddings, reranking), shared by all APIs.
import type { Context } from "hono";
import { checkPromptTokens, saltOf } from "../../conversation/engine-request.ts";
import type { EngineEvent, EngineRequest, Priority } from "../../engine/protocol.ts";
import type { ServedModel } from "../../serve/models.ts";
import { Prefills, type PrefillsRequest } from "../../serve/prefills.ts";
import type { EncodeWork } from "../../text/encoder/encode-work.ts";
import type { Encoded } from "../../text/encoder/encoder.ts";
import type { HttpEnv } from "../frame/env.ts";
import { lowestOf } from "../frame/priority.ts";
import type { Generating } from "../frame/serving.ts";
import { Generation } from "./generation.ts";

export type PrefillModel = {
  model: string;
  /** Milliseconds that the model stays loaded without requests. */
  keepAliveMs?: number | undefined;
};

/** Which outputs are read for each prompt. */
export type PrefillReading = Pick<EngineRequest, "pooling"> &
  Pick<PrefillsRequest, "shareHead"> & {
    /** Token ids whose logits at the prompt's last position are returned. */
    logitsOf?: readonly number[];
  };

export type Prefill = {
  model: ServedModel;
  /** Time spent waiting for the model to load. */
  loadMs: number;
  encode(work: EncodeWork): Promise<Encoded>;
  /** Computes the prompts; may be called once. */
  read(prompts: readonly Uint32Array[], reading: PrefillReading): Promise<EngineEvent[]>;
};

/** Runs `compute` with the loaded model and releases everything afterwards, also after an error. */
export async function prefilled<T>(
  c: Context<HttpEnv>,
  serving: Generating,
  ceiling: Priority,
  { model: name, keepAliveMs }: PrefillModel,
  compute: (prefill: Prefill) => Promise<T>,
): Promise<T> {
  const startMs = performance.now();
  const caller = c.get("caller");
  const priority = lowestOf(caller.tier, ceiling);
  const generation = new Generation(c, serving, priority);
  try {
    const model = await generation.use(name, keepAliveMs);
    const result = await compute({
      model,
      loadMs: performance.now() - startMs,
      encode: (work) => generation.encode(model, work),
      async read(prompts, { pooling, logitsOf, shareHead = false }) {
        checkPromptTokens(prompts, model);
        const common = {
          name: c.get("record").id,
          priority,
          client: generation.client,
          salt: saltOf(caller.name),
          sampling: { temperature: 0, logitsOf },
          ...(pooling && { pooling }),
        };
        const requests = prompts.map((prompt) => ({ ...common, prompt: prompt.slice() }));
        const asked = { model: model.name, requests, shareHead };
        return await generation.begin(() => new Prefills(serving.engine, asked)).read();
      },
    });
    generation.end();
    return result;
  } catch (error) {
    generation.end(error);
    throw error;
  }
}

export function totalLength(prompts: readonly Uint32Array[]): number {
  return prompts.reduce((sum, { length }) => sum + length, 0);
}
