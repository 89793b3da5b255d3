// Files and batches on disk: the contents of files in a folder, all else in an SQLite database beside it. What
// is in the database counts: a content without its row is what a crash has left, and is removed at the next
// start. The database is locked while a store is open, so that no two processes answer the same lines.
import { Database, SQLiteError, type SQLQueryBindings } from "bun:sqlite";
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

/** Another process has the store open. */
export class StoreBusyError extends Error {
  override name = "StoreBusyError";
}

const VERSION = 1;

const schema = `
  CREATE TABLE files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    createdAt INTEGER NOT NULL,
    expiresAt INTEGER,
    -- Deleted by its owner, and kept for a batch that reads it.
    isDeleted INTEGER NOT NULL DEFAULT 0
  ) STRICT;
  CREATE INDEX filesOfKeys ON files (owner);
  CREATE TABLE batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    status TEXT NOT NULL,
    inputFile TEXT NOT NULL,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    -- The other fields of a batch, as JSON.
    details TEXT NOT NULL
  ) STRICT;
  CREATE INDEX batchesOfKeys ON batches (owner);
  CREATE TABLE lines (
    batch TEXT NOT NULL,
    line INTEGER NOT NULL,
    customId TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    offset INTEGER NOT NULL,
    length INTEGER NOT NULL,
    -- A line of the output, once there is one.
    answer TEXT,
    isCompleted INTEGER,
    UNIQUE (batch, line)
  ) STRICT;
`;

/** Rows that one transaction inserts or deletes: more would block other requests. */
export const SLICE = 200;

/** Finished batches of a key that are remembered. */
const MAX_ENDED = 1000;

export type Page<T> = { data: T[]; hasMore: boolean };
export type PageOrder = {
  after?: string | undefined;
  limit: number;
  order?: "asc" | "desc" | undefined;
};

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
  readonly #db: Database;

  /** Creates what is not there; throws StoreBusyError if another process uses it. */
  constructor(folder: string) {
    this.#folder = join(folder, "files");
    mkdirSync(this.#folder, { recursive: true, mode: 0o700 });
    this.#db = openDatabase(databaseIn(folder));
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
    this.#run(
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

  file(owner: string, id: string): StoredFile | undefined {
    const row = this.#get<FileRow>(
      `SELECT ${fileFields} FROM files WHERE id = ? AND owner = ? AND NOT isDeleted AND ifnull(expiresAt > ?, 1)`,
      id,
      owner,
      nowSeconds(),
    );
    return row && fileOf(row);
  }

  files(owner: string, purpose: string | undefined, page: PageOrder): Page<StoredFile> {
    const { data, hasMore } = this.#page<FileRow>(
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
    return this.#get<{ files: number; bytes: number }>(
      "SELECT count(*) AS files, ifnull(sum(bytes), 0) AS bytes FROM files WHERE owner = ?",
      owner,
    )!;
  }

  /** The content of a file that a batch reads stays until the batch has ended. */
  deleteFile(id: string): void {
    this.#run("UPDATE files SET isDeleted = 1 WHERE id = ?", id);
    this.removeUnused();
  }

  /** Removes files that are deleted or expired, and that no batch reads. */
  removeUnused(): void {
    const unused = this.#all<{ id: string }>(
      `SELECT id FROM files WHERE (isDeleted OR expiresAt <= ?)
       AND id NOT IN (SELECT inputFile FROM batches WHERE status NOT IN ${endedList})`,
      nowSeconds(),
    );
    for (const { id } of unused) {
      this.#run("DELETE FROM files WHERE id = ?", id);
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
    this.#run(
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
    const row = this.#get<BatchRow>(`SELECT ${batchFields} FROM batches WHERE id = ?`, id);
    return row && batchOf(row);
  }

  batches(owner: string, page: PageOrder): Page<Batch> {
    const found = this.#page<BatchRow>("batches", batchFields, "owner = ?", [owner], page);
    return { data: found.data.map(batchOf), hasMore: found.hasMore };
  }

  /** Of all keys, the oldest first. */
  unfinished(owner?: string): Batch[] {
    return this.#all<BatchRow>(
      `SELECT ${batchFields} FROM batches WHERE status NOT IN ${endedList} AND owner = ifnull(?, owner) ORDER BY number`,
      owner ?? null,
    ).map(batchOf);
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
      this.#run(
        "UPDATE batches SET status = ?, total = ?, completed = ?, failed = ?, details = ? WHERE id = ?",
        status,
        total,
        completed,
        failed,
        detailsOf(batch),
        id,
      );
      if (isEnded(batch)) this.#forgetOld(batch.owner);
    })();
    return batch;
  }

  #forgetOld(owner: string): void {
    this.#run(
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
        this.#run(
          `INSERT INTO lines (batch, ${lineFields}) VALUES (?, ?, ?, ?, ?, ?)`,
          batch,
          line,
          customId,
          endpoint,
          offset,
          length,
        );
      }
    })();
  }

  /** The first lines after this one that have no answer. */
  unanswered(batch: string, after: number, limit: number): BatchLine[] {
    return this.#all<BatchLine>(
      `SELECT ${lineFields} FROM lines WHERE batch = ? AND line > ? AND answer IS NULL ORDER BY line LIMIT ?`,
      batch,
      after,
      limit,
    );
  }

  lines(batch: string, after: number, limit: number): AnsweredLine[] {
    return this.#all<AnsweredLine>(
      `SELECT ${lineFields}, answer, isCompleted FROM lines WHERE batch = ? AND line > ? ORDER BY line LIMIT ?`,
      batch,
      after,
      limit,
    );
  }

  /** The answer and the count of it, together or not at all. A line that has one keeps it. */
  answer(batch: string, line: number, answer: string, isCompleted: boolean): void {
    this.#db.transaction(() => {
      const { changes } = this.#run(
        "UPDATE lines SET answer = ?, isCompleted = ? WHERE batch = ? AND line = ? AND answer IS NULL",
        answer,
        isCompleted ? 1 : 0,
        batch,
        line,
      );
      if (changes === 0) return;
      const count = isCompleted ? "completed" : "failed";
      this.#run(`UPDATE batches SET ${count} = ${count} + 1 WHERE id = ?`, batch);
    })();
  }

  /** Some lines of batches that need them no longer; false if there are none. */
  removeLines(batch: string): boolean {
    const { changes } = this.#run(
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
    const known = new Set(this.#all<{ id: string }>("SELECT id FROM files").map(({ id }) => id));
    for (const name of readdirSync(this.#folder)) {
      if (!known.has(name)) rmSync(this.pathOf(name), { force: true });
    }
    // A batch that was being validated is validated again.
    this.#run(
      "DELETE FROM lines WHERE batch NOT IN (SELECT id FROM batches WHERE status IN ('in_progress', 'finalizing', 'cancelling'))",
    );
  }

  #page<Row>(
    table: "files" | "batches",
    fields: string,
    where: string,
    values: SQLQueryBindings[],
    { after, limit, order = "desc" }: PageOrder,
  ): Page<Row> {
    const isBehind = order === "desc" ? "<" : ">";
    const rows = this.#all<Row>(
      `SELECT ${fields} FROM ${table} WHERE ${where}
       AND ifnull(number ${isBehind} (SELECT number FROM ${table} WHERE id = ?), ?)
       ORDER BY number ${order} LIMIT ?`,
      ...values,
      after ?? null,
      // After an unknown id there is nothing.
      after === undefined ? 1 : 0,
      limit + 1,
    );
    return { data: rows.slice(0, limit), hasMore: rows.length > limit };
  }

  #run(sql: string, ...values: SQLQueryBindings[]) {
    return this.#db.query(sql).run(...values);
  }

  #get<Row>(sql: string, ...values: SQLQueryBindings[]): Row | undefined {
    return (this.#db.query(sql).get(...values) as Row | null) ?? undefined;
  }

  #all<Row>(sql: string, ...values: SQLQueryBindings[]): Row[] {
    return this.#db.query(sql).all(...values) as Row[];
  }
}

const endedList = "('failed', 'completed', 'expired', 'cancelled')";

export function databaseIn(folder: string): string {
  return join(folder, "batches.sqlite");
}

export function newId(kind: "file" | "batch"): string {
  return `${kind === "file" ? "file-" : "batch_"}${crypto.randomUUID().replaceAll("-", "")}`;
}

function openDatabase(path: string): Database {
  const db = new Database(path, { create: true });
  try {
    // The lock is the system's: it is free again when the process has died.
    db.run("PRAGMA locking_mode = EXCLUSIVE");
    db.run("PRAGMA auto_vacuum = INCREMENTAL");
    db.run("PRAGMA journal_mode = WAL");
    // A killed process loses nothing. A power failure may lose the last lines, which are then answered again.
    db.run("PRAGMA synchronous = NORMAL");
    const { user_version: version } = db.query("PRAGMA user_version").get() as {
      user_version: number;
    };
    if (version > VERSION) throw new Error("the batches are those of a newer version of mlx-serve");
    db.transaction(() => {
      if (version === 0) db.run(schema);
      db.run(`PRAGMA user_version = ${VERSION}`);
    }).immediate();
    return db;
  } catch (error) {
    db.close();
    if (error instanceof SQLiteError && error.code?.startsWith("SQLITE_BUSY")) {
      throw new StoreBusyError("another process uses the folder of the batches");
    }
    throw error;
  }
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
