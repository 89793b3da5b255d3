// What crosses between the server and the ranks of a model that is divided among several processes. The server's engine
// Worker schedules, and sends every rank the same messages; ranks compute, and the first one sends back what it drew.

import type { Traffic } from "../engine/protocol.ts";
import type { CacheLayout } from "../kv/kv-cache.ts";
import type { Connections } from "../mlx/distributed.ts";
import type { StepInputs, StepOutputs } from "../model/run/runner.ts";
import type { Lookback } from "../model/run/sampler.ts";
import type { LayerSplit } from "../model/weights/stages.ts";
import type { Parallel } from "../model/weights/weights.ts";

/** A model as all ranks load it, each its part. */
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
  /** Whether its files are the server's: nothing is loaded before all ranks have said so. */
  | { kind: "check"; model: string; path: string; fingerprint: string }
  | ({ kind: "load" } & RankLoad)
  | { kind: "unload"; model: string }
  | { kind: "step"; model: string; inputs: StepInputs }
  /** Of the first step that was not read, for rows that look back. */
  | { kind: "draw"; model: string; lookbacks: readonly Lookback[] }
  /** The first step that was not read: the first rank replies with its outputs. */
  | { kind: "read"; model: string };

export type FromRank =
  | { kind: "progress"; model: string; loadedBytes: number; totalBytes: number }
  | { kind: "checked"; model: string }
  /** Its files are others, or cannot be read. */
  | { kind: "refused"; model: string; reason: string }
  | { kind: "loaded"; model: string; weightBytes: number; kvBytes: number }
  | { kind: "outputs"; model: string; outputs: StepOutputs; traffic: Traffic };

/** What the server's main thread tells the engine Worker of its ranks, beside what they send. */
export type ToRankUser =
  /** With what arrays may take on each of them. */
  | { kind: "formed"; memory: readonly number[] }
  | { kind: "lost"; reason: string }
  | { kind: "message"; rank: number; bytes: Uint8Array };

/** What the engine Worker says: to all ranks, or of them. */
export type FromRankUser =
  | { kind: "message"; bytes: Uint8Array }
  | { kind: "giveUp"; reason: string }
  /** The rank that refuses a model; undefined once none does. */
  | { kind: "refused"; model: string; rank: number | undefined };

/** Between the main threads, as JSON. */
export type Hello = { kind: "hello"; rank: number; nonce: string; proof: string; version: string };
export type ToRankProcess =
  | { kind: "challenge"; nonce: string }
  | { kind: "welcome"; proof: string }
  | { kind: "refused"; reason: string }
  /** All ranks are there: connect to each other. */
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

/** How long nothing may be heard of a rank; it says that it is alive more often. */
export const SILENCE_MS = 5000;
export const ALIVE_MS = 1000;
