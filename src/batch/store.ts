// Files and batches on disk: the contents of files in a folder, all else in the database beside it. What is in
// the database counts: a content without its row is what a crash has left, and is removed at the next start.
import { mkdirSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import {
  type Batch,
  type BatchLine,
  type BatchOrder,
  type BatchStatus,
  isEnded,
  nowSeconds,
  type StoredFile,
} from "./batch.ts";
import { BatchDatabase, type Page, type PageOrder } from "./database.ts";

/** Rows that one transaction inserts or deletes: more would block other requests. */
export const SLICE = 200;

/** Finished batches of a key that are remembered. */
const MAX_ENDED = 1000;

export type AnsweredLine = BatchLine & { answer: string | null; isCompleted: number | null };

type FileRow = Omit<StoredFile, "expiresAt"> & { expiresAt: number | null };
type BatchRow = { id: string; owner: string; status: BatchStatus; inputFile: string } & {
  total: number;
  completed: number;
  failed: number;
  details: string;
};

const fileFields = "id, owner, filename, purpose, bytes, createdAt, expiresAt";
const batchFields = "id, owner, status, inputFile, total, completed, failed, details";
const lineFields = "line, customId, endpoint, offset, length";

export class BatchStore {
  readonly #folder: string;
  readonly #db: BatchDatabase;

  /** Creates what is not there; throws StoreBusyError if another process uses it. */
  constructor(folder: string) {
    this.#folder = join(folder, "files");
    mkdirSync(this.#folder, { recursive: true, mode: 0o700 });
    this.#db = new BatchDatabase(folder);
    this.#removeStrays();
  }

  close(): void {
    this.#db.close();
  }

  /** Where a file's content is. */
  pathOf(id: string): string {
    return join(this.#folder, id);
  }

  // Files

  /** The content has to be at its path already. */
  addFile(file: StoredFile): void {
    this.#db.run(
      "INSERT INTO files (id, owner, filename, purpose, bytes, createdAt, expiresAt) VALUES (?, ?, ?, ?, ?, ?, ?)",
      file.id,
      file.owner,
      file.filename,
      file.purpose,
      file.bytes,
      file.createdAt,
      file.expiresAt ?? null,
    );
  }

  /** Of one owner, or of any. */
  file(owner: string | undefined, id: string): StoredFile | undefined {
    const row = this.#db.get<FileRow>(
      `SELECT ${fileFields} FROM files WHERE id = ? AND owner = ifnull(?, owner) AND NOT isDeleted AND ifnull(expiresAt > ?, 1)`,
      id,
      owner ?? null,
      nowSeconds(),
    );
    return row && fileOf(row);
  }

  files(owner: string, purpose: string | undefined, page: PageOrder): Page<StoredFile> {
    const { data, hasMore } = this.#db.page<FileRow>(
      "files",
      fileFields,
      "owner = ? AND NOT isDeleted AND ifnull(expiresAt > ?, 1) AND purpose = ifnull(?, purpose)",
      [owner, nowSeconds(), purpose ?? null],
      page,
    );
    return { data: data.map(fileOf), hasMore };
  }

  /** What a key has stored. Deleted files count until they are gone. */
  usage(owner: string): { files: number; bytes: number } {
    return this.#db.get<{ files: number; bytes: number }>(
      "SELECT count(*) AS files, ifnull(sum(bytes), 0) AS bytes FROM files WHERE owner = ?",
      owner,
    )!;
  }

  /** The content of a file that a batch reads stays until the batch has ended. */
  deleteFile(id: string): void {
    this.#db.run("UPDATE files SET isDeleted = 1 WHERE id = ?", id);
    this.removeUnused();
  }

  /** Removes files that are deleted or expired, and that no batch reads. */
  removeUnused(): void {
    const unused = this.#db.all<{ id: string }>(
      `SELECT id FROM files WHERE (isDeleted OR expiresAt <= ?)
       AND id NOT IN (SELECT inputFile FROM batches WHERE status NOT IN ${endedList})`,
      nowSeconds(),
    );
    for (const { id } of unused) {
      this.#db.run("DELETE FROM files WHERE id = ?", id);
      rmSync(this.pathOf(id), { force: true });
    }
  }

  // Batches

  addBatch(order: BatchOrder): Batch {
    const createdAt = nowSeconds();
    const batch: Batch = {
      ...order,
      id: newId("batch"),
      status: "validating",
      createdAt,
      at: { validating: createdAt },
      faults: [],
      outputFile: undefined,
      errorFile: undefined,
      counts: { total: 0, completed: 0, failed: 0 },
    };
    this.#db.run(
      "INSERT INTO batches (id, owner, status, inputFile, details) VALUES (?, ?, ?, ?, ?)",
      batch.id,
      batch.owner,
      batch.status,
      batch.inputFile,
      detailsOf(batch),
    );
    return batch;
  }

  batch(id: string): Batch | undefined {
    const row = this.#db.get<BatchRow>(`SELECT ${batchFields} FROM batches WHERE id = ?`, id);
    return row && batchOf(row);
  }

  /** Of one owner, or of all. */
  batches(owner: string | undefined, page: PageOrder): Page<Batch> {
    const [where, values] = owner === undefined ? ["TRUE", []] : ["owner = ?", [owner]];
    const found = this.#db.page<BatchRow>("batches", batchFields, where, values, page);
    return { data: found.data.map(batchOf), hasMore: found.hasMore };
  }

  /** Of all keys, the oldest first. */
  unfinished(owner?: string): Batch[] {
    return this.#db
      .all<BatchRow>(
        `SELECT ${batchFields} FROM batches WHERE status NOT IN ${endedList} AND owner = ifnull(?, owner) ORDER BY number`,
        owner ?? null,
      )
      .map(batchOf);
  }

  /** Gives a batch its next status, and with it other fields and the files that were written for it. */
  advance(
    id: string,
    status: BatchStatus,
    change: Partial<Pick<Batch, "faults" | "outputFile" | "errorFile" | "counts">> = {},
    files: readonly StoredFile[] = [],
  ): Batch {
    const before = this.batch(id)!;
    const batch: Batch = {
      ...before,
      ...change,
      status,
      at: { ...before.at, [status]: nowSeconds() },
    };
    this.#db.transaction(() => {
      for (const file of files) this.addFile(file);
      const { total, completed, failed } = batch.counts;
      this.#db.run(
        "UPDATE batches SET status = ?, total = ?, completed = ?, failed = ?, details = ? WHERE id = ?",
        status,
        total,
        completed,
        failed,
        detailsOf(batch),
        id,
      );
      if (isEnded(batch)) this.#forgetOld(batch.owner);
    });
    return batch;
  }

  #forgetOld(owner: string): void {
    this.#db.run(
      `DELETE FROM batches WHERE number IN (SELECT number FROM batches
       WHERE owner = ? AND status IN ${endedList} ORDER BY number DESC LIMIT -1 OFFSET ?)`,
      owner,
      MAX_ENDED,
    );
  }

  // Lines

  addLines(batch: string, lines: readonly BatchLine[]): void {
    this.#db.transaction(() => {
      for (const { line, customId, endpoint, offset, length } of lines) {
        this.#db.run(
          `INSERT INTO lines (batch, ${lineFields}) VALUES (?, ?, ?, ?, ?, ?)`,
          batch,
          line,
          customId,
          endpoint,
          offset,
          length,
        );
      }
    });
  }

  /** The first lines after this one that have no answer. */
  unanswered(batch: string, after: number, limit: number): BatchLine[] {
    return this.#db.all<BatchLine>(
      `SELECT ${lineFields} FROM lines WHERE batch = ? AND line > ? AND answer IS NULL ORDER BY line LIMIT ?`,
      batch,
      after,
      limit,
    );
  }

  lines(batch: string, after: number, limit: number): AnsweredLine[] {
    return this.#db.all<AnsweredLine>(
      `SELECT ${lineFields}, answer, isCompleted FROM lines WHERE batch = ? AND line > ? ORDER BY line LIMIT ?`,
      batch,
      after,
      limit,
    );
  }

  /** The answer and the count of it, together or not at all. A line that has one keeps it. */
  answer(batch: string, line: number, answer: string, isCompleted: boolean): void {
    this.#db.transaction(() => {
      const { changes } = this.#db.run(
        "UPDATE lines SET answer = ?, isCompleted = ? WHERE batch = ? AND line = ? AND answer IS NULL",
        answer,
        isCompleted ? 1 : 0,
        batch,
        line,
      );
      if (changes === 0) return;
      const count = isCompleted ? "completed" : "failed";
      this.#db.run(`UPDATE batches SET ${count} = ${count} + 1 WHERE id = ?`, batch);
    });
  }

  /** Some lines of batches that need them no longer; false if there are none. */
  removeLines(batch: string): boolean {
    const { changes } = this.#db.run(
      "DELETE FROM lines WHERE rowid IN (SELECT rowid FROM lines WHERE batch = ? LIMIT ?)",
      batch,
      SLICE,
    );
    this.#db.run("PRAGMA incremental_vacuum(1000)");
    return changes > 0;
  }

  /** What a crash has left. */
  #removeStrays(): void {
    this.removeUnused();
    const known = new Set(this.#db.all<{ id: string }>("SELECT id FROM files").map(({ id }) => id));
    for (const name of readdirSync(this.#folder)) {
      if (!known.has(name)) rmSync(this.pathOf(name), { force: true });
    }
    // A batch that was being validated is validated again.
    this.#db.run(
      "DELETE FROM lines WHERE batch NOT IN (SELECT id FROM batches WHERE status IN ('in_progress', 'finalizing', 'cancelling'))",
    );
  }
}

const endedList = "('failed', 'completed', 'expired', 'cancelled')";

export function newId(kind: "file" | "batch"): string {
  return `${kind === "file" ? "file-" : "batch_"}${crypto.randomUUID().replaceAll("-", "")}`;
}

function fileOf(row: FileRow): StoredFile {
  return { ...row, expiresAt: row.expiresAt ?? undefined };
}

type Details = Omit<Batch, "id" | "owner" | "status" | "inputFile" | "counts">;

function detailsOf(batch: Batch): string {
  const { id: _, owner: __, status: ___, inputFile: ____, counts: _____, ...details } = batch;
  return JSON.stringify(details satisfies Details);
}

function batchOf({ details, total, completed, failed, ...columns }: BatchRow): Batch {
  return { ...(JSON.parse(details) as Details), ...columns, counts: { total, completed, failed } };
}
