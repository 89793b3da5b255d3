// All messages between the main thread and the engine Worker. They carry tokens, never text: templates and
// tokenizers stay on the main thread.
import type { Grammar } from "../grammar/grammar.ts";
import type { MatcherLink } from "../grammar/matchers.ts";
import type { PrefixMiss } from "../kv/cached-tokens.ts";
import type { Score, TokenLogprob } from "../model/run/logprobs.ts";
import type { Sampling } from "../model/run/sampler.ts";
import type { LayerRange, Parallel } from "../model/weights/stages.ts";
import type { Priority } from "../schedule/queue.ts";
import type { Refusal as SchedulerRefusal } from "../schedule/scheduler.ts";
import type { FinishReason } from "../schedule/sequence.ts";
import type { Mailbox } from "./mailbox.ts";

export type { FinishReason, Parallel, Priority, Sampling, Score as PromptLogprob, TokenLogprob };

export type EngineRequest = {
  /** Name of the request in reports. */
  name?: string;
  prompt: Uint32Array;
  /** Prefix lengths that other conversations may share, ascending. Recurrent states are snapshotted there. */
  heads?: readonly number[] | undefined;
  maxTokens: number;
  minTokens?: number;
  /** Number of answers. */
  n?: number;
  priority?: Priority;
  /** The API key; requests without one count as one client. */
  client?: string | undefined;
  /** Requests with different salts share no blocks. */
  salt?: string;
  stopTokens?: readonly number[];
  sampling: Sampling;
  /** Constrains the answers; the engine must have a grammar thread attached. */
  grammar?: Grammar;
  /** Index of the grammar thread that makes the token masks; 0 by default. */
  grammarLane?: number;
  /** Returns log-probabilities of the prompt's tokens, each with this number of most likely alternatives. */
  promptLogprobs?: number;
  /** Returns an embedding: the hidden state of the prompt's last token, or the mean over all. */
  pooling?: Pooling;
};

export type Pooling = "last" | "mean";

/** The event of one step for one answer of one request. */
export type EngineEvent = {
  /** Index of the answer among the request's n. */
  index: number;
  token: number | undefined;
  logprob?: number | undefined;
  top?: TokenLogprob[] | undefined;
  /** Logits of the tokens in the sampling's `logitsOf`, if requested. */
  logits?: number[] | undefined;
  /** `dead_end`: no token can continue the answer as its grammar requires. */
  finished: FinishReason | "dead_end" | undefined;
  /** Prompt tokens that hit the prefix cache. */
  cachedTokens: number;
  /** Time in the queue; set with the first token. */
  queueMs?: number | undefined;
  /** Where the prompt diverges from the prefix cache; set with the first token, at log level debug. */
  miss?: PrefixMiss | undefined;
  /** Scores of all prompt tokens but the first, if requested; set with the first token of the first answer. */
  promptLogprobs?: Score[] | undefined;
  /** Embedding, if requested; set with the first token. */
  vector?: Float32Array | undefined;
};

export type RequestEvent = { id: number; event: EngineEvent };

/** The events of a step, as step-events.ts packs them. */
export type SentEvents = {
  /** Four numbers per event that is only a token: the request's id, the answer's index, token, cachedTokens. */
  readonly tokens: Float64Array;
  /** Number of events in `tokens`; the array may be larger. */
  readonly count: number;
  readonly others: readonly RequestEvent[];
};

export type Refusal = SchedulerRefusal | "bad_token" | "ranks_refuse";

export type EngineOptions = {
  /** Maximum number of running sequences; 1 turns batching off. */
  maxBatch: number;
  /** Maximum tokens per step; the device's default if absent. */
  tokenBudget?: number | undefined;
  /** Number of KV blocks of 32 tokens; by default as many as fit in `kvBytes`. */
  blocks?: number | undefined;
  /** Memory for KV blocks; the device's default if absent. */
  kvBytes?: number | undefined;
  /** Part of `kvBytes` for snapshots of recurrent states; by default a quarter. */
  snapshotBytes?: number | undefined;
  maxWaiting: number;
  maxWaitingTokens: number;
  /** Maximum sequence length, if below the model's own; "auto" is the maximum that fits in memory. */
  maxLength?: number | "auto" | undefined;
  /** Target time of a step with prompts; the device's default if absent. */
  stepMs?: number | undefined;
  /** Whether prompts reuse the KV blocks of shared prefixes. */
  prefixCaching: boolean;
  dtype?: "float32" | "float16" | "bfloat16" | undefined;
  /** CUDA: whether to keep a dequantized copy of weights for steps with many rows. Default: if it fits easily. */
  keepUnpacked?: boolean | undefined;
  /** Whether to compile the kernels of all batch sizes during the load instead of at first use. */
  warmUp?: boolean | undefined;
  /** Whether step reports list every request. */
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
  /** Maximum sequence length. */
  maxLength: number;
  /** The model's own maximum sequence length. */
  ownLength: number;
  /** Why `maxLength` is below `ownLength`: an option, or the memory for KV blocks. */
  lengthLimit: "setting" | "memory" | undefined;
  blocks: number;
  kvBytes: number;
  /** How the model is divided, if it runs on ranks. */
  parallel?: Parallel | undefined;
  /** One array per pool: how many blocks are free, cached, held and shared. `readGauges` reads it from any thread. */
  gauges: readonly SharedArrayBuffer[];
  /** If the model has recurrent layers: bytes of one state slot, and how many slots are free, cached and held. */
  slots?: { bytes: number; gauges: SharedArrayBuffer } | undefined;
  /** Numbers of running and waiting answers, which `readLoad` reads from any thread. */
  load: SharedArrayBuffer;
};

/** The memory a model would need on this device. */
export type ModelPlan = {
  backend: "cpu" | "metal" | "cuda";
  dtype: string;
  /** Size of the weights in memory: quantized, or converted to `dtype`. */
  weightBytes: number;
  /** The model's own maximum sequence length. */
  maxPositions: number;
  /** Maximum sequence length that fits in memory. If none does, this, the pools and the steps have size 0. */
  maxLength: number;
  /** KV bytes per token of each group of layers, and the group's sliding window, if any. */
  kv: readonly { bytesPerToken: number; window: number | undefined }[];
  /** Bytes of a sequence's recurrent state. */
  stateBytes: number;
  /** Bytes of the pools of KV blocks and recurrent states. */
  kvBytes: number;
  /** Maximum tokens per step, and bytes of its arrays. */
  stepTokens: number;
  stepBytes: number;
  /** Current memory limit for all models, including loaded ones. */
  memoryLimitBytes: number;
  /** Wired memory, which is never swapped out, if the device wires any. */
  wiredBytes: number;
  /** Why the model does not fit, with the needed and the available memory. */
  refusal?: string | undefined;
};

/** Number of running and waiting answers. */
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
  /** `hits`: sequences that resumed from a snapshot; `misses`: those with cached blocks that no snapshot reaches. */
  snapshots: { hits: number; misses: number };
  /** Why the step failed. */
  error?: string | undefined;
  /** If the model runs on ranks: totals of the first rank's collectives since it loaded the model. */
  traffic?: Traffic | undefined;
  /** With `debug`: the tokens of each row. */
  batch?: RowReport[] | undefined;
  /** While steps are watched: three numbers per row: request id, number of tokens, 1 for prefill. */
  rowTokens?: Int32Array | undefined;
  /** With `debug`: every running and waiting request. */
  requests?: RequestReport[] | undefined;
};

/** A rank's collectives: their number and bytes sent; of the sample that was timed, the number and total time. */
export type Traffic = { collectives: number; bytes: number; measured: number; measuredMs: number };

export const noTraffic: Traffic = { collectives: 0, bytes: 0, measured: 0, measuredMs: 0 };

/** Estimates the time of all collectives from the measured ones. */
export function collectiveMs({ collectives, measured, measuredMs }: Traffic): number {
  return measured === 0 ? 0 : (measuredMs / measured) * collectives;
}

export type RowReport = Pick<RequestReport, "id" | "index" | "name"> & { tokens: number };

export type RequestReport = {
  id: number;
  /** Index of the answer among the answers of its request. */
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

/** State of a model's blocks, for display. */
export type BlockMap = {
  model: string;
  blocksPerCell: number;
  /** State of the most used block in each cell: 0 free, 1 cached, 2 held, 3 shared. A cell is one or more blocks. */
  cells: Uint8Array;
  /** The cells used by the named requests. */
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
  /** Whether step reports list the tokens of each row. */
  | { kind: "watch"; isWatched: boolean }
  | { kind: "blocks"; id: number; names: readonly string[] }
  /** Attaches a grammar thread with the index `lane`, which serves constrained requests from now on. */
  | { kind: "matchers"; lane: number; link: MatcherLink }
  /** The server is shutting down: cancels the running load and fails later ones. */
  | { kind: "refuseLoads" }
  | { kind: "stop" };

/** A long task and its progress: bytes of weights, warm-up steps, or kernels whose compilation has begun. */
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

/** How models are divided among ranks. "auto" chooses by the model, and by whether the ranks share a machine. */
export type Division = {
  parallel: Parallel | "auto";
  /** The layers of each rank, if configured. */
  layers?: readonly LayerRange[] | undefined;
};

/** Options of the Worker, given when it starts. */
export type WorkerSetup = { library: string; device: "cpu" | "gpu" | undefined; trace: boolean };

export type WorkerData = {
  mailbox: Mailbox;
  setup: WorkerSetup;
  /** Set if models run on ranks: `size` ranks in total, `localSize` of them on this machine. */
  ranks?: { mailbox: Mailbox; size: number; localSize: number; division: Division } | undefined;
};

export type EngineReport = {
  backend: "cpu" | "metal" | "cuda";
  mlxVersion: string;
  device: Record<string, string | number>;
  deviceName: string;
  blas: { name: string; threads: number } | undefined;
  /** The device's memory, the limit for models, and the memory available for another model. */
  memory: { totalBytes: number; usableBytes: number; roomBytes: number };
  /** Throughput of a float32 matmul of the size of the default model's layers, if measured. */
  matmulGflops: number | undefined;
};
