// What is known of an uploaded or written file, and of a batch. Times are Unix times in seconds, as on the wire.

export type StoredFile = {
  id: string;
  /** The name of the key that it belongs to. */
  owner: string;
  filename: string;
  purpose: "batch" | "batch_output";
  bytes: number;
  createdAt: number;
  expiresAt: number | undefined;
};

export type BatchStatus =
  | "validating"
  | "failed"
  | "in_progress"
  | "finalizing"
  | "completed"
  | "expired"
  | "cancelling"
  | "cancelled";

/** How a batch can end. */
export type Outcome = Extract<BatchStatus, "completed" | "expired" | "cancelled">;

/** Why an input file is not accepted. */
export type LineFault = {
  code: string;
  message: string;
  /** Counted from 1; null for the file as a whole. */
  line: number | null;
  param: string | null;
};

/** What was asked for. */
export type BatchOrder = {
  owner: string;
  /** The endpoint of all lines; each line has its own where this is undefined. */
  endpoint: string | undefined;
  inputFile: string;
  /** As the client wrote it. */
  window: string;
  /** Never if undefined. */
  expiresAt: number | undefined;
  metadata: Record<string, string> | undefined;
  /** How long the output is kept; forever if undefined. */
  outputSeconds: number | undefined;
};

export type Batch = BatchOrder & {
  id: string;
  status: BatchStatus;
  createdAt: number;
  /** When it got each status. */
  at: Partial<Record<BatchStatus, number>>;
  faults: readonly LineFault[];
  outputFile: string | undefined;
  errorFile: string | undefined;
  /** Lines: `completed` with a response of 200, `failed` with any other or none. */
  counts: { total: number; completed: number; failed: number };
};

/** One request of a batch: where its body is in the input file. */
export type BatchLine = {
  /** Counted from 1. */
  line: number;
  customId: string;
  endpoint: string;
  offset: number;
  length: number;
};

const ended: readonly BatchStatus[] = ["failed", "completed", "expired", "cancelled"];

export const isEnded = ({ status }: Pick<Batch, "status">) => ended.includes(status);

export const nowSeconds = () => Math.floor(Date.now() / 1000);
