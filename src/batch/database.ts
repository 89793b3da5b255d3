// The SQLite database of files and batches. It stays locked while open, so that no two processes answer the same lines;
// the system releases the lock when the process dies.
import { Database, SQLiteError, type SQLQueryBindings } from "bun:sqlite";
import { join } from "node:path";

/** Thrown if another process has the store open. */
export class StoreBusyError extends Error {
  override name = "StoreBusyError";
}

const VERSION = 1;

const full = ["ENOSPC", "EDQUOT", "EFBIG", "SQLITE_FULL"];

export function isDiskFull(error: unknown): boolean {
  const { code } = (error ?? {}) as { code?: unknown };
  return typeof code === "string" && (full.includes(code) || code.startsWith("SQLITE_IOERR"));
}

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

export type Page<T> = { data: T[]; hasMore: boolean };
export type PageOrder = {
  after?: string | undefined;
  limit: number;
  order?: "asc" | "desc" | undefined;
};

export class BatchDatabase {
  readonly #db: Database;

  /** Opens or creates the database; throws StoreBusyError if another process has it open. */
  constructor(folder: string) {
    this.#db = openDatabase(databaseIn(folder));
  }

  close(): void {
    this.#db.close();
  }

  transaction(change: () => void): void {
    this.#db.transaction(change)();
  }

  page<Row>(
    table: "files" | "batches",
    fields: string,
    where: string,
    values: SQLQueryBindings[],
    { after, limit, order = "desc" }: PageOrder,
  ): Page<Row> {
    const isBehind = order === "desc" ? "<" : ">";
    const rows = this.all<Row>(
      `SELECT ${fields} FROM ${table} WHERE ${where}
       AND ifnull(number ${isBehind} (SELECT number FROM ${table} WHERE id = ?), ?)
       ORDER BY number ${order} LIMIT ?`,
      ...values,
      after ?? null,
      // Result if the cursor `after` matches no row: without a cursor all rows pass (1), with an unknown id none do
      // (0).
      after === undefined ? 1 : 0,
      limit + 1,
    );
    return { data: rows.slice(0, limit), hasMore: rows.length > limit };
  }

  run(sql: string, ...values: SQLQueryBindings[]) {
    return this.#db.query(sql).run(...values);
  }

  get<Row>(sql: string, ...values: SQLQueryBindings[]): Row | undefined {
    return (this.#db.query(sql).get(...values) as Row | null) ?? undefined;
  }

  all<Row>(sql: string, ...values: SQLQueryBindings[]): Row[] {
    return this.#db.query(sql).all(...values) as Row[];
  }
}

export function databaseIn(folder: string): string {
  return join(folder, "batches.sqlite");
}

function openDatabase(path: string): Database {
  const db = new Database(path, { create: true });
  try {
    db.run("PRAGMA locking_mode = EXCLUSIVE");
    db.run("PRAGMA auto_vacuum = INCREMENTAL");
    db.run("PRAGMA journal_mode = WAL");
    // A crash of the process loses nothing; a power failure may lose the last answers, which are computed again.
    db.run("PRAGMA synchronous = NORMAL");
    const { user_version: version } = db.query("PRAGMA user_version").get() as {
      user_version: number;
    };
    if (version > VERSION)
      throw new Error("the batches were written by a newer version of mlx-serve");
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
