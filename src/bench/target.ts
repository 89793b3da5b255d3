// A benchmark target: anything that streams the tokens of an answer.
import type { Priority } from "../engine/protocol.ts";

export type BenchRequest = { prompt: string; maxTokens: number; priority?: Priority };

/** One request as its client has seen it; times are those of performance.now(). */
export type Sample = {
  startMs: number;
  /** Arrival times: of each token in process, and of each chunk over HTTP. */
  arrivalsMs: number[];
  endMs: number;
  promptTokens: number;
  /** Prompt tokens that were hits in the prefix cache. */
  cachedTokens: number;
  /** Generated. */
  tokens: number;
};

export type Memory = {
  /** MLX's active memory. */
  activeBytes?: number;
  /** Of the whole process. */
  rssBytes?: number;
};

/** What is known about the target. */
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
  /** `onFirst` is called when the answer begins. */
  send(request: BenchRequest, onFirst?: () => void): Promise<Sample>;
  memory(): Promise<Memory>;
  close(): Promise<void>;
};
