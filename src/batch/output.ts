// The output of a batch: one line per input line, in the same order. Responses with status 200 go to the output file,
// all others to the error file.
import { type FileHandle, open, rm } from "node:fs/promises";
import { type Batch, nowSeconds, type Outcome, type StoredFile } from "./batch.ts";
import { type AnsweredLine, type BatchStore, newId } from "./store.ts";

export type LineResponse = {
  status: number;
  /** Response body as JSON, in the form that clients get. */
  body: string;
};

/** Returns the x-request-id of a line's request, which its output line contains too. */
export function requestIdOf(batch: Pick<Batch, "id">, line: number): string {
  return `batch_req_${batch.id.replace("batch_", "")}-${line}`;
}

export function answerText(
  batch: Pick<Batch, "id">,
  { line, customId }: Pick<AnsweredLine, "line" | "customId">,
  { status, body }: LineResponse,
): string {
  const id = requestIdOf(batch, line);
  const response = `{"status_code":${status},"request_id":"${id}","body":${body}}`;
  return `{"id":"${id}","custom_id":${JSON.stringify(customId)},"response":${response},"error":null}`;
}

const unanswered: Readonly<Record<Outcome, { code: string; message: string }>> = {
  completed: { code: "batch_failed", message: "This request was not executed." },
  expired: {
    code: "batch_expired",
    message: "This request could not be executed before the completion window expired.",
  },
  cancelled: {
    code: "batch_cancelled",
    message: "This request was not executed before the batch was cancelled.",
  },
};

/** Lines read from the store at once; only a few, because answers may be long. */
const LINES_AT_ONCE = 32;

/** Yields all output lines in order, and whether each has a response with status 200. */
function* outputLines(store: BatchStore, { id }: Pick<Batch, "id">, outcome: Outcome) {
  let after = 0;
  for (;;) {
    const lines = store.lines(id, after, LINES_AT_ONCE);
    if (lines.length === 0) return;
    for (const each of lines) {
      const { line, customId, answer, isCompleted } = each;
      const text =
        answer ??
        JSON.stringify({
          id: requestIdOf({ id }, line),
          custom_id: customId,
          response: null,
          error: unanswered[outcome],
        });
      yield { text, isCompleted: isCompleted === 1 };
      after = line;
    }
  }
}

export type WrittenOutput = {
  files: StoredFile[];
  outputFile: string | undefined;
  errorFile: string | undefined;
  counts: Batch["counts"];
};

/** Writes the output file and the error file, each only if it has lines. Leaves no file if it throws. */
export async function writeOutput(
  store: BatchStore,
  batch: Batch,
  outcome: Outcome,
): Promise<WrittenOutput> {
  const good = new OutputFile(store, batch, "output");
  const bad = new OutputFile(store, batch, "error");
  try {
    for (const { text, isCompleted } of outputLines(store, batch, outcome)) {
      await (isCompleted ? good : bad).add(text);
    }
    const [output, errors] = [await good.end(), await bad.end()];
    return {
      files: [output, errors].filter((file) => file !== undefined),
      outputFile: output?.id,
      errorFile: errors?.id,
      counts: { total: good.lines + bad.lines, completed: good.lines, failed: bad.lines },
    };
  } catch (error) {
    await Promise.allSettled([good.remove(), bad.remove()]);
    throw error;
  }
}

/** Bytes per write. */
const PIECE = 2 ** 18;

class OutputFile {
  lines = 0;
  readonly #file: StoredFile;
  readonly #path: string;
  #handle: FileHandle | undefined;
  #pending = "";

  constructor(store: BatchStore, { id, owner, outputSeconds }: Batch, kind: "output" | "error") {
    const createdAt = nowSeconds();
    this.#file = {
      id: newId("file"),
      owner,
      filename: `${id}_${kind}.jsonl`,
      purpose: "batch_output",
      bytes: 0,
      createdAt,
      expiresAt: outputSeconds === undefined ? undefined : createdAt + outputSeconds,
    };
    this.#path = store.pathOf(this.#file.id);
  }

  async add(line: string): Promise<void> {
    this.lines += 1;
    this.#pending += `${line}\n`;
    if (this.#pending.length >= PIECE) await this.#write();
  }

  /** Completes the file; returns undefined if it has no lines. */
  async end(): Promise<StoredFile | undefined> {
    if (this.lines === 0) return undefined;
    await this.#write();
    await this.#handle!.sync();
    await this.#handle!.close();
    return this.#file;
  }

  async remove(): Promise<void> {
    await this.#handle?.close().catch(() => {});
    await rm(this.#path, { force: true });
  }

  async #write(): Promise<void> {
    const bytes = Buffer.from(this.#pending);
    this.#pending = "";
    this.#handle ??= await open(this.#path, "wx", 0o600);
    await this.#handle.appendFile(bytes);
    this.#file.bytes += bytes.length;
  }
}
