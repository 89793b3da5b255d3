// Messages between the server and its ranks. The server's engine Worker schedules and sends every rank the same
// messages; ranks compute, and the first one sends back the sampled tokens.

import type { Traffic } from "../engine/protocol.ts";
import type { CacheLayout } from "../kv/kv-cache.ts";
import type { Connections } from "../mlx/distributed.ts";
import type { Lookback } from "../model/run/sampler.ts";
import type { StepInputs, StepOutputs } from "../model/run/step.ts";
import type { LayerSplit, Parallel } from "../model/weights/stages.ts";

/** A model to load; each rank loads its part. */
export type RankLoad = {
  model: string;
  path: string;
  dtype: "float32" | "float16" | "bfloat16";
  keepDequantized: boolean | undefined;
  layout: CacheLayout;
  parallel: Parallel;
  layers: LayerSplit;
  warmUp: { maxBatch: number; maxLength: number } | undefined;
};

export type ToRank =
  /** Compares the rank's model files with the server's: all ranks must confirm a match before any rank loads. */
  | { kind: "check"; model: string; path: string; fingerprint: string }
  | ({ kind: "load" } & RankLoad)
  | { kind: "unload"; model: string }
  | { kind: "step"; model: string; inputs: StepInputs }
  /** Samples the rows of the oldest unread step that wait for token counts (penalties) or token masks. */
  | { kind: "draw"; model: string; lookbacks: readonly Lookback[] }
  /** Reads the oldest unread step: the first rank replies with its outputs. */
  | { kind: "read"; model: string };

export type FromRank =
  | { kind: "progress"; model: string; loadedBytes: number; totalBytes: number }
  | { kind: "checked"; model: string }
  /** The rank's model files differ from the server's, or cannot be read. */
  | { kind: "refused"; model: string; reason: string }
  | { kind: "loaded"; model: string; weightBytes: number; kvBytes: number }
  | { kind: "outputs"; model: string; outputs: StepOutputs; traffic: Traffic };

/** Messages from the server's main thread to the engine Worker: the group's state, and messages of ranks. */
export type ToRankUser =
  /** All ranks have joined and connected; `memory`: usable bytes of each rank. */
  | { kind: "formed"; memory: readonly number[] }
  | { kind: "lost"; reason: string }
  | { kind: "message"; rank: number; bytes: Uint8Array };

/** Messages from the engine Worker to the server's main thread, which forwards each `message` to all ranks. */
export type FromRankUser =
  | { kind: "message"; bytes: Uint8Array }
  | { kind: "giveUp"; reason: string }
  /** `rank` refuses the model; undefined once no rank does. */
  | { kind: "refused"; model: string; rank: number | undefined };

/** Messages between the main threads of server and rank, as JSON. */
export type Hello = { kind: "hello"; rank: number; nonce: string; proof: string; version: string };
export type ToRankProcess =
  | { kind: "challenge"; nonce: string }
  | { kind: "welcome"; proof: string }
  | { kind: "refused"; reason: string }
  /** All ranks have joined: connect to each other. */
  | { kind: "form" };
export type FromRankProcess =
  | Hello
  | {
      kind: "formed";
      backend: string;
      mlxVersion: string;
      connections: Connections;
      usableBytes: number;
    }
  | { kind: "alive" }
  | { kind: "failed"; reason: string };

/** A rank that sends nothing for SILENCE_MS is lost; it sends `alive` every ALIVE_MS. */
export const SILENCE_MS = 5000;
export const ALIVE_MS = 1000;
