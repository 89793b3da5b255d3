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
  /** Number of prompt tokens that hit the prefix cache. */
  cachedTokens: number;
  /** Number of generated tokens. */
  tokens: number;
};

export type Memory = {
  /** Bytes of MLX's active memory. */
  activeBytes?: number;
  /** Bytes of the process's resident memory. */
  rssBytes?: number;
};

export type TargetAbout = {
  kind: "engine" | "server";
  model: string;
  url?: string;
  /** Name and version of the server, as it reports them. */
  server?: string;
  backend?: string;
  device?: string;
  mlxVersion?: string;
};

export type Target = {
  about: TargetAbout;
  /** Sends a request and measures it; calls `onFirst` when the answer begins. */
  send(request: BenchRequest, onFirst?: () => void): Promise<Sample>;
  memory(): Promise<Memory>;
  close(): Promise<void>;
};
