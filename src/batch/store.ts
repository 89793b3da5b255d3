// Files and batches on disk: file contents in a folder, everything else in a database. The database is authoritative: a
// file without a row is left from a crash and removed at the next start.
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

/** Maximum rows per transaction: a longer one would block other requests. */
export const SLICE = 200;

/** Maximum ended batches kept per API key. */
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

  /** Opens or creates the store; throws StoreBusyError if another process uses it. */
  constructor(folder: string) {
    this.#folder = join(folder, "files");
    mkdirSync(this.#folder, { recursive: true, mode: 0o700 });
    this.#db = new BatchDatabase(folder);
    this.#removeStrays();
  }

  close(): void {
    this.#db.close();
  }

  pathOf(id: string): string {
    return join(this.#folder, id);
  }

  // Files

  /** Adds a file, whose content must already be at its path. */
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

  /** Returns a file; undefined if it does not exist. `owner`: API key that must own it; undefined allows any. */
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

  /** Returns the number and size of an API key's files, including deleted ones until they are removed from disk. */
  usage(owner: string): { files: number; bytes: number } {
    return this.#db.get<{ files: number; bytes: number }>(
      "SELECT count(*) AS files, ifnull(sum(bytes), 0) AS bytes FROM files WHERE owner = ?",
      owner,
    )!;
  }

  /** Marks a file as deleted; its content stays while a batch reads it. */
  deleteFile(id: string): void {
    this.#db.run("UPDATE files SET isDeleted = 1 WHERE id = ?", id);
    this.removeUnused();
  }

  /** Removes the deleted and expired files that no batch reads. */
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

  /** Returns a page of batches. `owner`: the API key that owns them; undefined for all keys. */
  batches(owner: string | undefined, page: PageOrder): Page<Batch> {
    const [where, values] = owner === undefined ? ["TRUE", []] : ["owner = ?", [owner]];
    const found = this.#db.page<BatchRow>("batches", batchFields, where, values, page);
    return { data: found.data.map(batchOf), hasMore: found.hasMore };
  }

  /** Returns the unfinished batches of a key, or of all keys, oldest first. */
  unfinished(owner?: string): Batch[] {
    return this.#db
      .all<BatchRow>(
        `SELECT ${batchFields} FROM batches WHERE status NOT IN ${endedList} AND owner = ifnull(?, owner) ORDER BY number`,
        owner ?? null,
      )
      .map(batchOf);
  }

  /** Sets the next status, other fields and the files written for the batch, in one transaction. */
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

  /** Returns the first unanswered lines after line number `after`. */
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

  /** Stores an answer and counts it in one transaction; keeps an earlier answer to the same line. */
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

  /** Deletes at most SLICE lines of a batch; returns false if there were none. */
  removeLines(batch: string): boolean {
    const { changes } = this.#db.run(
      "DELETE FROM lines WHERE rowid IN (SELECT rowid FROM lines WHERE batch = ? LIMIT ?)",
      batch,
      SLICE,
    );
    this.#db.run("PRAGMA incremental_vacuum(1000)");
    return changes > 0;
  }

  /** Removes what crashes leave: files without a database row, and lines whose batch is missing or has ended. */
  #removeStrays(): void {
    this.removeUnused();
    const known = new Set(this.#db.all<{ id: string }>("SELECT id FROM files").map(({ id }) => id));
    for (const name of readdirSync(this.#folder)) {
      if (!known.has(name)) rmSync(this.pathOf(name), { force: true });
    }
    // Also removes the lines of batches in validation, which starts over.
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
