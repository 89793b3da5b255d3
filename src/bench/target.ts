// The interface of benchmark targets: anything that streams the tokens of an answer.
import type { Priority } from "../engine/protocol.ts";

export type BenchRequest = { prompt: string; maxTokens: number; priority?: Priority };

/** One request as seen by its client, in times of performance.now(). */
export type Sample = {
  startMs: number;
  /** Arrival time of each token in process, or of each chunk over HTTP. */
  arrivalsMs: number[];
  endMs: number;
  promptTokens: number;
  /** Prompt tokens that hit the prefix cache. */
  cachedTokens: number;
  /** Generated tokens. */
  tokens: number;
};

export type Memory = {
  /** MLX's active memory. */
  activeBytes?: number;
  /** Resident memory of the process. */
  rssBytes?: number;
};

export type TargetAbout = {
  kind: "engine" | "server";
  model: string;
  url?: string;
  /** As the server reports it. */
  server?: string;
  backend?: string;
  device?: string;
  mlxVersion?: string;
};

export type Target = {
  about: TargetAbout;
  /** Calls `onFirst` when the answer begins. */
  send(request: BenchRequest, onFirst?: () => void): Promise<Sample>;
  memory(): Promise<Memory>;
  close(): Promise<void>;
};
