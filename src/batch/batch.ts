// Records of files and batches. Times are Unix times in seconds, as in the API.

export type StoredFile = {
  id: string;
  /** Name of the owning key. */
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

export type Outcome = Extract<BatchStatus, "completed" | "expired" | "cancelled">;

/** An error in an input file. */
export type LineFault = {
  code: string;
  message: string;
  /** Counted from 1; null for the file as a whole. */
  line: number | null;
  param: string | null;
};

export type BatchOrder = {
  owner: string;
  /** The endpoint of all lines; undefined if each line names its own. */
  endpoint: string | undefined;
  inputFile: string;
  /** The completion window, as requested. */
  window: string;
  /** Undefined if the batch never expires. */
  expiresAt: number | undefined;
  metadata: Record<string, string> | undefined;
  /** Lifetime of the output files; unlimited if undefined. */
  outputSeconds: number | undefined;
};

export type Batch = BatchOrder & {
  id: string;
  status: BatchStatus;
  createdAt: number;
  /** Time of each status. */
  at: Partial<Record<BatchStatus, number>>;
  faults: readonly LineFault[];
  outputFile: string | undefined;
  errorFile: string | undefined;
  /** Numbers of lines: `completed` have a response with status 200, `failed` any other or none. */
  counts: { total: number; completed: number; failed: number };
};

/** One request of a batch, with the position of its body in the input file. */
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
