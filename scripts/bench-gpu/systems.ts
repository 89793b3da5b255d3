// What is measured: the engine by its own API, and mlx-lm. Each is given so many prompts at once and says
// when each token came.
import { join } from "node:path";
import { engineSetup } from "../../ffi/native.ts";
import { EngineClient } from "../../src/engine/client.ts";
import type { ModelInfo } from "../../src/engine/protocol.ts";
import { startChild } from "./child.ts";
import type { Arrivals } from "./figures.ts";

/** So many requests at once, each of so many prompt tokens and new ones. */
export type Load = { requests: number; prompt: number; new: number };

export type System = {
  name: string;
  measure(load: Load): Promise<Arrivals>;
  stop(): Promise<void>;
};

export type OwnOptions = {
  maxBatch: number;
  tokenBudget: number | undefined;
  blocks: number | undefined;
  keepUnpacked: boolean;
};

/** A loaded engine of this process. */
export type Own = { engine: EngineClient; info: ModelInfo; stop(): Promise<void> };

/** What a child says of a round. */
export type Answer = { arrivals: number[][] } | { error: string };

export async function startEngine(folder: string, options: OwnOptions): Promise<Own> {
  const { maxBatch, tokenBudget, blocks, keepUnpacked } = options;
  const engine = await EngineClient.start(engineSetup());
  const info = await engine.load("model", folder, {
    maxBatch,
    keepUnpacked,
    ...(tokenBudget && { tokenBudget }),
    ...(blocks && { blocks }),
  });
  return { engine, info, stop: () => engine.stop() };
}

export function engineSystem({ engine, info }: Own): System {
  return {
    name: "mlx-serve",
    async measure({ requests, prompt, new: maxTokens }) {
      const prompts = randomPrompts(requests, prompt, info.vocabulary);
      const start = performance.now();
      return await Promise.all(
        prompts.map(async (ids) => {
          const request = {
            prompt: Uint32Array.from(ids),
            maxTokens,
            sampling: { temperature: 0 },
          };
          const events = engine.submit(info.model, request);
          const times: number[] = [];
          for (let read = await events.read(); read.length > 0; read = await events.read()) {
            const time = performance.now() - start;
            for (const { token } of read) if (token !== undefined) times.push(time);
          }
          return times;
        }),
      );
    },
    stop: async () => {},
  };
}

/** `python` has mlx-lm. */
export async function mlxLmSystem(python: string, folder: string, own: Own): Promise<System> {
  const program = [python, join(import.meta.dir, "mlx-lm.py"), folder];
  // With the default it gives up at 4 bits ("Cache thrashing").
  const graphs = process.env.MLX_CUDA_GRAPH_CACHE_SIZE ?? "4000";
  const child = await startChild(program, {
    HF_HUB_OFFLINE: "1",
    MLX_CUDA_GRAPH_CACHE_SIZE: graphs,
  });
  const { vocabulary } = own.info;
  return {
    name: "mlx-lm",
    measure: async (load) => arrivalsOf(await child.ask<Answer>({ ...load, vocabulary })),
    stop: () => child.stop(),
  };
}

/** Of random tokens, so that no two begin alike. */
export function randomPrompts(count: number, tokens: number, vocabulary: number): number[][] {
  return Array.from({ length: count }, () =>
    Array.from({ length: tokens }, () => Math.floor(Math.random() * vocabulary)),
  );
}

export function arrivalsOf(answer: Answer): number[][] {
  if ("error" in answer) throw new Error(answer.error);
  return answer.arrivals;
}
