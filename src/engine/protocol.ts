// The messages between the main thread and the engine Worker; nothing else crosses.
// Tokens cross it, not text: templates and tokenizers stay on the main thread.
import type { Grammar } from "../grammar/grammar.ts";
import type { MatcherLink } from "../grammar/matchers.ts";
import type { PrefixMiss } from "../kv/cached-tokens.ts";
import type { Score, TokenLogprob } from "../model/run/logprobs.ts";
import type { Sampling } from "../model/run/sampler.ts";
import type { LayerRange } from "../model/weights/stages.ts";
import type { Parallel } from "../model/weights/weights.ts";
import type { Priority } from "../schedule/queue.ts";
import type { Refusal as SchedulerRefusal } from "../schedule/scheduler.ts";
import type { FinishReason } from "../schedule/sequence.ts";
import type { Mailbox } from "./mailbox.ts";

export type { FinishReason, Parallel, Priority, Sampling, Score as PromptLogprob, TokenLogprob };

export type EngineRequest = {
  /** What reports call it. */
  name?: string;
  prompt: Uint32Array;
  /** Lengths of its beginnings that other prompts may share, in ascending order. Recurrent states are kept there. */
  heads?: readonly number[] | undefined;
  maxTokens: number;
  minTokens?: number;
  /** How many answers. */
  n?: number;
  priority?: Priority;
  /** The key that sent it; those without one count as one client. */
  client?: string | undefined;
  /** Requests with different salts share no blocks. */
  salt?: string;
  stopTokens?: readonly number[];
  sampling: Sampling;
  /** Constrains the answers; the engine must have a grammar thread attached. */
  grammar?: Grammar;
  /** Which of the grammar threads follows the answers; the first by default. */
  grammarLane?: number;
  /** How likely the prompt's own tokens were, and so many others. */
  promptLogprobs?: number;
  /** Returns a vector: the hidden state of the prompt's last token, or the mean of all. */
  pooling?: Pooling;
};

export type Pooling = "last" | "mean";

/** The event of one step for one answer of one request. */
export type EngineEvent = {
  /** Which of the n answers. */
  index: number;
  token: number | undefined;
  logprob?: number | undefined;
  top?: TokenLogprob[] | undefined;
  /** If asked for: of the tokens that the sampling names. */
  logits?: number[] | undefined;
  /** `dead_end`: no token can continue the answer as its grammar requires. */
  finished: FinishReason | "dead_end" | undefined;
  /** Prompt tokens that hit the prefix cache. */
  cachedTokens: number;
  /** With the first token: how long the request has waited. */
  queueMs?: number | undefined;
  /** With the first token, at debug level: where the prompt parts from what is cached. */
  miss?: PrefixMiss | undefined;
  /** With the first token of the first answer, if asked for: of all the prompt's tokens but the first. */
  promptLogprobs?: Score[] | undefined;
  /** With the first token, if asked for. */
  vector?: Float32Array | undefined;
};

export type RequestEvent = { id: number; event: EngineEvent };

/** The events of a step, as step-events.ts packs them. */
export type SentEvents = {
  /** Four numbers for each plain token: the request's id, the answer's index, the token, cachedTokens. */
  readonly tokens: Float64Array;
  /** The number of plain tokens; the array may be larger. */
  readonly count: number;
  readonly others: readonly RequestEvent[];
};

export type Refusal = SchedulerRefusal | "bad_token" | "ranks_refuse";

export type EngineOptions = {
  /** Sequences that run at once; 1 is batching off. */
  maxBatch: number;
  /** Tokens that a step computes at most; by default what suits the device. */
  tokenBudget?: number | undefined;
  /** Blocks of 32 tokens; by default as many as `kvBytes` hold. */
  blocks?: number | undefined;
  /** Memory for the blocks; by default what suits the device. */
  kvBytes?: number | undefined;
  /** Of that, for snapshots of recurrent states; by default a quarter. */
  snapshotBytes?: number | undefined;
  maxWaiting: number;
  maxWaitingTokens: number;
  /** Tokens of a sequence, where that is less than the model takes; "auto" is as many as there is memory for. */
  maxLength?: number | "auto" | undefined;
  /** How long a step with prompts may take, in milliseconds; by default what suits the device. */
  stepMs?: number | undefined;
  /** Whether prompts share the KV blocks of common prefixes. */
  prefixCaching: boolean;
  dtype?: "float32" | "float16" | "bfloat16" | undefined;
  /** On CUDA quantized weights are kept dequantized as well, for steps with many rows; by default where that takes little. */
  keepUnpacked?: boolean | undefined;
  /** Kernels are compiled when a model is loaded, for all sizes of batches, and not when they are needed. */
  warmUp?: boolean | undefined;
  /** Each step's report lists every request. */
  debug?: boolean | undefined;
};

export const defaultEngineOptions: EngineOptions = {
  maxBatch: 32,
  maxWaiting: 1000,
  maxWaitingTokens: 2 ** 20,
  prefixCaching: true,
};

export type ModelInfo = {
  model: string;
  dtype: string;
  weightBytes: number;
  vocabulary: number;
  /** The longest sequence. */
  maxLength: number;
  /** The longest that the model was made for. */
  ownLength: number;
  /** What makes it shorter than that: what was asked for, or the memory for KV blocks. */
  lengthLimit: "setting" | "memory" | undefined;
  blocks: number;
  kvBytes: number;
  /** Where it is divided among ranks: how. */
  parallel?: Parallel | undefined;
  /** What `readGauges` reads from any thread. */
  gauges: readonly SharedArrayBuffer[];
  /** Of a model with recurrent layers: what one slot takes, and what `readGauges` reads of all. */
  slots?: { bytes: number; gauges: SharedArrayBuffer } | undefined;
  /** What `readLoad` reads from any thread. */
  load: SharedArrayBuffer;
};

/** What a model takes on this device, before it is loaded. */
export type ModelPlan = {
  backend: "cpu" | "metal" | "cuda";
  dtype: string;
  /** As they are held: quantized, or converted to the type above. */
  weightBytes: number;
  /** The longest sequence that the model was made for. */
  maxPositions: number;
  /** The longest that there is memory for; this and what follows is 0 where the model does not fit. */
  maxLength: number;
  /** What the layers keep of each token: all of them, or as many as their window has. */
  kv: readonly { bytesPerToken: number; window: number | undefined }[];
  /** What recurrent layers keep of a sequence. */
  stateBytes: number;
  /** The pool of KV blocks and states. */
  kvBytes: number;
  /** The most tokens of a step, and what its arrays take. */
  stepTokens: number;
  stepBytes: number;
  /** What models may take now, those that are loaded too. */
  memoryLimitBytes: number;
  /** What is kept from being swapped out, where the device does that. */
  wiredBytes: number;
  /** Why it does not fit, with the numbers. */
  refusal?: string | undefined;
};

/** Running and waiting answers. */
export type Load = { running: number; waiting: number };

export function readLoad(load: SharedArrayBuffer): Load {
  const [running, waiting] = new Int32Array(load);
  return { running: running!, waiting: waiting! };
}

/** One step, for logs and metrics. */
export type StepReport = {
  model: string;
  step: number;
  ms: number;
  rows: number;
  prefillTokens: number;
  decodeTokens: number;
  preempted: number;
  running: number;
  waiting: number;
  blocks: { total: number; free: number; cached: number; held: number; shared: number };
  /** Sequences that began in it from a snapshot, and those that had cached blocks but no snapshot at their end. */
  snapshots: { hits: number; misses: number };
  /** Why it could not be computed. */
  error?: string | undefined;
  /** What ranks have sent each other since they were started, where there are some. */
  traffic?: Traffic | undefined;
  /** With `debug`: the tokens of each row. */
  batch?: RowReport[] | undefined;
  /** While steps are watched: three numbers for each row: its request's id, its tokens, and 1 if they are a prompt's. */
  rowTokens?: Int32Array | undefined;
  /** With `debug`: every running and waiting request. */
  requests?: RequestReport[] | undefined;
};

/** The collectives of a rank: how many, what they have sent, and how long those took that were measured. */
export type Traffic = {
  collectives: number;
  bytes: number;
  measured: number;
  measuredMs: number;
};

export const noTraffic: Traffic = { collectives: 0, bytes: 0, measured: 0, measuredMs: 0 };

/** All of them, if each took as long as those that were measured. */
export function collectiveMs({ collectives, measured, measuredMs }: Traffic): number {
  return measured === 0 ? 0 : (measuredMs / measured) * collectives;
}

export type RowReport = Pick<RequestReport, "id" | "index" | "name"> & { tokens: number };

export type RequestReport = {
  id: number;
  /** Which of its answers. */
  index: number;
  name: string | undefined;
  state: "waiting" | "running";
  priority: Priority;
  ageMs: number;
  standing: number;
  promptTokens: number;
  generated: number;
  cachedTokens: number;
  preemptions: number;
  blocks: number;
};

export type ModelStats = {
  model: string;
  steps: number;
  forwards: number;
  preemptions: number;
  promptTokens: number;
  cachedTokens: number;
  generatedTokens: number;
  traffic?: Traffic | undefined;
  liveArrays: number;
  activeBytes: number;
  last: StepReport | undefined;
  requests: RequestReport[];
};

/** The blocks of a model, for a picture of them. */
export type BlockMap = {
  model: string;
  blocksPerCell: number;
  /** By cell, how much its most used block is: 0 if it is free, 1 cached, 2 held, 3 shared. */
  cells: Uint8Array;
  /** The cells of the requests that were asked for. */
  requests: { name: string; index: number; cells: number[] }[];
};

export type ToWorker =
  | { kind: "inspect"; id: number; measure: boolean }
  | { kind: "load"; id: number; model: string; path: string; options: EngineOptions }
  | { kind: "plan"; id: number; path: string; options: EngineOptions }
  | { kind: "unload"; id: number; model: string }
  | { kind: "submit"; id: number; model: string; request: EngineRequest }
  | { kind: "abort"; id: number; index?: number }
  | { kind: "stats"; id: number }
  /** Whether the reports of steps list the tokens of each row. */
  | { kind: "watch"; isWatched: boolean }
  | { kind: "blocks"; id: number; names: readonly string[] }
  /** The grammar thread that constrained requests of this lane submitted from now on use. */
  | { kind: "matchers"; lane: number; link: MatcherLink }
  /** The server shuts down: the load under way is cancelled, and later ones fail. */
  | { kind: "refuseLoads" }
  | { kind: "stop" };

/** Long work that the engine is at, and how far it is: bytes of weights, steps, or kernels that were begun so far. */
export type EngineActivity =
  | { kind: "load"; model: string; done: number; total: number }
  | { kind: "warm_up"; model: string; done: number; total: number }
  | { kind: "compile"; kernel: string; done: number };

export type FromWorker =
  | { kind: "ready" }
  | { kind: "answer"; id: number; answer: unknown }
  | { kind: "failed"; id: number; message: string }
  | { kind: "activity"; activity: EngineActivity }
  | { kind: "refused"; id: number; reason: Refusal }
  | { kind: "step"; events: SentEvents; report?: StepReport };

/** How models are divided among ranks: as was asked for, or as suits the model and where the ranks are. */
export type Division = {
  parallel: Parallel | "auto";
  /** Of each rank, where it was asked for. */
  layers?: readonly LayerRange[] | undefined;
};

/** Given to the Worker when it starts. */
export type WorkerSetup = { library: string; device: "cpu" | "gpu" | undefined; trace: boolean };

export type WorkerData = {
  mailbox: Mailbox;
  setup: WorkerSetup;
  /** Processes that models are divided among; `localSize` of them share this machine. */
  ranks?: { mailbox: Mailbox; size: number; localSize: number; division: Division } | undefined;
};

export type EngineReport = {
  backend: "cpu" | "metal" | "cuda";
  mlxVersion: string;
  device: Record<string, string | number>;
  deviceName: string;
  blas: { name: string; threads: number } | undefined;
  /** Of the device, what models may take of it, and what there is for one more now. */
  memory: { totalBytes: number; usableBytes: number; roomBytes: number };
  /** If it was to be measured: of a float32 product as large as a layer's of the default model. */
  matmulGflops: number | undefined;
};
