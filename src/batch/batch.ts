// Records of files and batches. Times are Unix times in seconds, as in the API.

export type StoredFile = {
  id: string;
  /** Name of the API key that owns the file. */
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
  /** Line number, counted from 1; null for an error in the file as a whole. */
  line: number | null;
  param: string | null;
};

export type BatchOrder = {
  owner: string;
  /** Endpoint of all lines; undefined if each line names an endpoint. */
  endpoint: string | undefined;
  inputFile: string;
  /** Completion window, as written in the request. */
  window: string;
  /** Time at which the batch expires; undefined if never. */
  expiresAt: number | undefined;
  metadata: Record<string, string> | undefined;
  /** Seconds that the output files are kept; undefined if forever. */
  outputSeconds: number | undefined;
};

export type Batch = BatchOrder & {
  id: string;
  status: BatchStatus;
  createdAt: number;
  /** Time at which each status began. */
  at: Partial<Record<BatchStatus, number>>;
  faults: readonly LineFault[];
  outputFile: string | undefined;
  errorFile: string | undefined;
  /** Number of lines: `completed` got a response with status 200, `failed` another response or none. */
  counts: { total: number; completed: number; failed: number };
};

/** One request of a batch, with the position of its body in the input file. */
export type BatchLine = {
  /** Line number, counted from 1. */
  line: number;
  customId: string;
  endpoint: string;
  offset: number;
  length: number;
};

const ended: readonly BatchStatus[] = ["failed", "completed", "expired", "cancelled"];

export const isEnded = ({ status }: Pick<Batch, "status">) => ended.includes(status);

export const nowSeconds = () => Math.floor(Date.now() / 1000);
