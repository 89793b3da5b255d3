// Stores responses with their input in an SQLite database, so that later requests can continue the conversation. Each
// key is bounded by bytes and age; the oldest responses are deleted first.
import { Database } from "bun:sqlite";
import { mkdirSync } from "node:fs";
import { dirname } from "node:path";

export type StoredResponse = {
  id: string;
  response: object;
  /** All input items of the conversation, including those of previous responses. */
  input: readonly object[];
};

export type StoredResponsesOptions = {
  /** Path of the database, which is created on first use. */
  path: string;
  /** Maximum bytes per key. */
  maxBytes: number;
  maxAgeMs?: number;
  now?: () => number;
};

const DAY_MS = 24 * 60 * 60 * 1000;

const schema = `
  CREATE TABLE IF NOT EXISTS responses (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    createdMs INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    response TEXT NOT NULL,
    input TEXT NOT NULL
  ) STRICT;
  CREATE INDEX IF NOT EXISTS responsesOfKeys ON responses (owner, number, bytes);
`;

type Row = { response: string; input: string };

export class StoredResponses {
  readonly #options: Required<StoredResponsesOptions>;
  #database: Database | undefined;

  constructor(options: StoredResponsesOptions) {
    this.#options = { maxAgeMs: 30 * DAY_MS, now: Date.now, ...options };
  }

  /** Stores a response; returns false if it alone exceeds the limit of a key. */
  save(owner: string, stored: StoredResponse): boolean {
    const { maxBytes, maxAgeMs, now } = this.#options;
    const [response, input] = [JSON.stringify(stored.response), JSON.stringify(stored.input)];
    const bytes = Buffer.byteLength(response) + Buffer.byteLength(input);
    if (bytes > maxBytes) return false;
    const database = this.#open();
    database.transaction(() => {
      database.run("DELETE FROM responses WHERE createdMs < ?", [now() - maxAgeMs]);
      database.run(
        "INSERT INTO responses (id, owner, createdMs, bytes, response, input) VALUES (?, ?, ?, ?, ?, ?)",
        [stored.id, owner, now(), bytes, response, input],
      );
      // Deletes the key's oldest responses that exceed the limit.
      database.run(
        `DELETE FROM responses WHERE number IN (
          SELECT number FROM (
            SELECT number, SUM(bytes) OVER (ORDER BY number DESC) AS newer
            FROM responses WHERE owner = ?
          ) WHERE newer > ?
        )`,
        [owner, maxBytes],
      );
    })();
    return true;
  }

  /** Returns a stored response; undefined if the key has none with this id. */
  find(owner: string, id: string): StoredResponse | undefined {
    const since = this.#options.now() - this.#options.maxAgeMs;
    const row = this.#open()
      .query<Row, [string, string, number]>(
        "SELECT response, input FROM responses WHERE owner = ? AND id = ? AND createdMs >= ?",
      )
      .get(owner, id, since);
    return row
      ? { id, response: JSON.parse(row.response), input: JSON.parse(row.input) }
      : undefined;
  }

  /** Deletes a stored response; returns false if the key has none with this id. */
  delete(owner: string, id: string): boolean {
    const { changes } = this.#open().run("DELETE FROM responses WHERE owner = ? AND id = ?", [
      owner,
      id,
    ]);
    return changes > 0;
  }

  close(): void {
    this.#database?.close();
    this.#database = undefined;
  }

  #open(): Database {
    if (this.#database) return this.#database;
    const { path } = this.#options;
    mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
    const database = new Database(path, { create: true, strict: true });
    // Write-ahead logging lets several servers share the database.
    database.run("PRAGMA journal_mode = WAL");
    database.run("PRAGMA synchronous = NORMAL");
    database.run("PRAGMA busy_timeout = 1000");
    // Overwrites deleted texts in the file.
    database.run("PRAGMA secure_delete = ON");
    database.run(schema);
    this.#database = database;
    return database;
  }
}
