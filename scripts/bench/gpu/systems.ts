// The measured systems: the engine through its API, mlx-lm, and vLLM. Each gets concurrent prompts and reports the
// arrival time of every token.
import { join } from "node:path";
import { engineSetup } from "../../../ffi/native.ts";
import { EngineClient } from "../../../src/engine/client.ts";
import type { ModelInfo } from "../../../src/engine/protocol.ts";
import { BLOCK_TOKENS } from "../../../src/kv/blocks.ts";
import { startChild } from "./child.ts";
import type { Arrivals } from "./figures.ts";

/** Concurrent requests, prompt tokens and new tokens. */
export type Load = { requests: number; prompt: number; new: number };

export type System = {
  name: string;
  version?: string | undefined;
  measure(load: Load): Promise<Arrivals>;
  stop(): Promise<void>;
};

export type OwnOptions = {
  maxBatch: number;
  tokenBudget: number | undefined;
  blocks: number | undefined;
  keepUnpacked: boolean | undefined;
};

/** An engine in this process, with its model loaded. */
export type Own = { engine: EngineClient; info: ModelInfo; stop(): Promise<void> };

/** The report of a child process about a round. */
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
        prompts.map(async (prompt) => {
          const request = { prompt, maxTokens, sampling: { temperature: 0 } };
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

/** `python`: an interpreter with mlx-lm, which is limited to this fraction of the memory. */
export async function mlxLmSystem(
  python: string,
  folder: string,
  own: Own,
  share: number,
): Promise<System> {
  const program = [python, join(import.meta.dir, "mlx-lm.py"), folder, String(share)];
  // With the default, it fails at 4 bits ("Cache thrashing").
  const graphs = process.env.MLX_CUDA_GRAPH_CACHE_SIZE ?? "4000";
  return await childSystem("mlx-lm", program, own.info, {
    HF_HUB_OFFLINE: "1",
    MLX_CUDA_GRAPH_CACHE_SIZE: graphs,
  });
}

/** `python`: an interpreter with vLLM, found via VLLM_PYTHONPATH if set. Gets the memory that the loads need. */
export async function vllmSystem(
  python: string,
  folder: string,
  { info }: Own,
  loads: readonly Load[],
): Promise<System> {
  const sizes = [longestOf(loads), mostOf(loads), vllmKvBytes(info, loads)];
  const program = [python, join(import.meta.dir, "vllm-engine.py"), folder, ...sizes.map(String)];
  const { VLLM_PYTHONPATH: path } = process.env;
  return await childSystem("vllm", program, info, path ? { PYTHONPATH: path } : {});
}

/** With a margin, since its block size differs. With recurrent layers, each block holds a state. */
export function vllmKvBytes(
  { kvBytes, blocks, slots }: Pick<ModelInfo, "kvBytes" | "blocks" | "slots">,
  loads: readonly Load[],
): number {
  const perToken = kvBytes / (blocks * BLOCK_TOKENS);
  const tokens = Math.max(...loads.map((load) => load.requests * (load.prompt + load.new)));
  const states = mostOf(loads) * (slots?.bytes ?? 0);
  return Math.ceil(1.1 * tokens * perToken + 3 * states + 2 ** 30);
}

/** A child program that gets one load per line and reports the arrival times of tokens. */
export async function childSystem(
  name: string,
  program: string[],
  { vocabulary }: Pick<ModelInfo, "vocabulary">,
  env: NodeJS.ProcessEnv = {},
): Promise<System> {
  const child = await startChild(program, env);
  return {
    name,
    version: child.ready.version,
    measure: async (load) => arrivalsOf(await child.ask<Answer>({ ...load, vocabulary })),
    stop: () => child.stop(),
  };
}

/** A system that failed to start; the others are still measured. */
export function absentSystem(name: string, error: unknown): System {
  return { name, measure: () => Promise.reject(error), stop: async () => {} };
}

/** "64", "64x1024" or "64x1024x16": requests, prompt tokens, new tokens. */
export function parseLoads(text: string, prompt: number, tokens: number): Load[] {
  return text.split(",").map((each) => {
    const numbers = each.split("x").map(Number);
    const [requests, ...others] = numbers;
    if (!requests || others.length > 2 || !numbers.every((n) => Number.isInteger(n) && n > 0)) {
      throw new Error(`expected a load such as <requests>x<prompt>x<new>, not ${each}`);
    }
    return { requests, prompt: others[0] ?? prompt, new: others[1] ?? tokens };
  });
}

export const mostOf = (loads: readonly Load[]) =>
  Math.max(...loads.map(({ requests }) => requests));

const longestOf = (loads: readonly Load[]) =>
  Math.max(...loads.map((load) => load.prompt + load.new));

/** Random tokens, so that prompts share no prefix. */
export function randomPrompts(count: number, tokens: number, vocabulary: number): Uint32Array[] {
  return Array.from({ length: count }, () =>
    Uint32Array.from({ length: tokens }, () => Math.floor(Math.random() * vocabulary)),
  );
}

export function arrivalsOf(answer: Answer): number[][] {
  if ("error" in answer) throw new Error(answer.error);
  return answer.arrivals;
}
