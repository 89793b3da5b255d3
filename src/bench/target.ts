// What can be measured: whatever answers a prompt token by token, and tells when.
import type { Priority } from "../engine/protocol.ts";

export type BenchRequest = { prompt: string; maxTokens: number; priority?: Priority };

/** One request as its client has seen it; times are those of performance.now(). */
export type Sample = {
  startMs: number;
  /** When a piece of the answer came: a token in process, and over HTTP what the server makes of it. */
  arrivalsMs: number[];
  endMs: number;
  promptTokens: number;
  /** Of the prompt's, those that were found computed. */
  cachedTokens: number;
  /** Generated. */
  tokens: number;
};

export type Memory = {
  /** What MLX holds. */
  activeBytes?: number;
  /** Of the whole process. */
  rssBytes?: number;
};

/** What answers, as far as it is known. */
export type TargetAbout = {
  kind: "engine" | "server";
  model: string;
  url?: string;
  /** What a server says of itself. */
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
