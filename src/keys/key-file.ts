// The keys file: the SHA-256 of each API key, with its name, tier and limits. The keys themselves are never
// written, and errors about an invalid file show neither keys nor hashes.
import { createHash, randomBytes, randomUUID } from "node:crypto";
import {
  closeSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { z } from "zod";
import { lockFile } from "../file-lock.ts";
import { codeOf } from "../hub/hub-error.ts";
import { configFolder, type Environment } from "../hub/settings.ts";

export class KeyFileError extends Error {
  override name = "KeyFileError";
}

const positive = z.int().positive();

// Names are shorter than any key or hash, so an error that shows a name never shows a key.
const namePattern = /^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$/;

/** Names that the server itself gives to keys; an entry of the file must have another one. */
const reserved = /^(anonymous|local|api-key-\d+)$/;

export const KeyEntry = z.strictObject({
  name: z
    .string()
    .regex(namePattern, "expected up to 40 letters, digits, dots, dashes and underscores")
    .refine((name) => !reserved.test(name), "this name is reserved"),
  sha256: z
    .string()
    .toLowerCase()
    .regex(/^[0-9a-f]{64}$/, "expected 64 hexadecimal digits"),
  tier: z.enum(["HIGH", "NORMAL", "LOW"]),
  limits: z
    .strictObject({
      requests_per_minute: positive.optional(),
      tokens_per_minute: positive.optional(),
      concurrent: positive.optional(),
    })
    .default({}),
  created: z.iso.datetime(),
});
export type KeyEntry = z.infer<typeof KeyEntry>;

export const KeyFile = z.strictObject({ keys: z.array(KeyEntry) }).check(({ value, issues }) => {
  for (const field of ["name", "sha256"] as const) {
    value.keys.forEach((entry, index) => {
      if (value.keys.findIndex((other) => other[field] === entry[field]) === index) return;
      const message = field === "name" ? "the name is taken" : "another entry has the same key";
      issues.push({ code: "custom", input: value, path: ["keys", index, field], message });
    });
  }
});
export type KeyFile = z.infer<typeof KeyFile>;

export function defaultKeyFile(env: Environment = process.env): string {
  return join(configFolder(env), "keys.json");
}

/** Returns the keys file of a server with these settings. */
export function keyFileOf(
  { keysFile }: { keysFile?: string | undefined },
  env?: Environment,
): string {
  return keysFile ?? defaultKeyFile(env);
}

export function hashOf(key: string): Buffer {
  return createHash("sha256").update(key).digest();
}

export function newKey(): string {
  return `sk-mlx-${randomBytes(32).toString("base64url")}`;
}

/** Reads the keys file; returns undefined if it does not exist. */
export function readKeyFile(path: string): KeyFile | undefined {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (error) {
    if (codeOf(error) === "ENOENT") return undefined;
    throw new KeyFileError(`${path}: cannot be read (${codeOf(error)}): check its permissions`);
  }
  const value = parse(path, text);
  const result = KeyFile.safeParse(value);
  if (result.success) return result.data;
  throw new KeyFileError(`${path}: ${describe(result.error.issues[0]!, value)}`);
}

/** Returns a warning if other users can access the file. */
export function keyFileWarning(path: string): string | undefined {
  const file = statSync(path, { throwIfNoEntry: false });
  if (!file || (file.mode & 0o077) === 0) return undefined;
  return `${path} can be read or written by others: \`chmod 600 ${path}\``;
}

/** Replaces the file atomically by a changed one, under a lock against other processes. */
export function changeKeyFile(path: string, change: (keys: KeyEntry[]) => KeyEntry[]): void {
  const target = resolveLink(path);
  try {
    mkdirSync(dirname(target), { recursive: true, mode: 0o700 });
    using _lock = lockFile(`${target}.lock`, 10_000);
    const keys = change(readKeyFile(target)?.keys ?? []);
    replace(target, `${JSON.stringify({ keys }, null, 2)}\n`);
  } catch (error) {
    if (codeOf(error) === undefined) throw error;
    throw new KeyFileError(
      `${path}: cannot be written (${codeOf(error)}): check the folder's permissions`,
    );
  }
}

/** Adds a key and returns it; undefined if the name is taken. The file stores only its hash. */
export function addKey(
  path: string,
  { name, tier, limits }: Pick<KeyEntry, "name" | "tier" | "limits">,
): string | undefined {
  const key = newKey();
  const sha256 = hashOf(key).toString("hex");
  const entry: KeyEntry = { name, sha256, tier, limits, created: new Date().toISOString() };
  let isTaken = false;
  changeKeyFile(path, (entries) => {
    isTaken = entries.some((each) => each.name === name);
    return isTaken ? entries : [...entries, entry];
  });
  return isTaken ? undefined : key;
}

/** Removes a key; returns false if none has this name. */
export function revokeKey(path: string, name: string): boolean {
  let isThere = false;
  changeKeyFile(path, (entries) => {
    isThere = entries.some((each) => each.name === name);
    return entries.filter((each) => each.name !== name);
  });
  return isThere;
}

/** Returns the target of a symbolic link, so that the target is replaced and not the link. */
function resolveLink(path: string): string {
  try {
    return realpathSync(path);
  } catch {
    return path;
  }
}

function replace(path: string, text: string): void {
  const partial = `${path}.${randomUUID()}`;
  try {
    const file = openSync(partial, "wx", 0o600);
    try {
      writeFileSync(file, text);
      fsyncSync(file);
    } finally {
      closeSync(file);
    }
    renameSync(partial, path);
  } catch (error) {
    rmSync(partial, { force: true });
    throw error;
  }
}

function parse(path: string, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    // The message of JSON.parse may quote the file, so it is not passed on.
    throw new KeyFileError(`${path}: not valid JSON`);
  }
}

function describe(issue: z.core.$ZodIssue, file: unknown): string {
  const [, index, ...field] = issue.path;
  const what = [...field, problem(issue)].join(": ");
  if (typeof index !== "number") return what;
  const name = (file as { keys: { name?: unknown }[] }).keys[index]?.name;
  return `entry ${index + 1}${isName(name) ? ` (${name})` : ""}: ${what}`;
}

function problem(issue: z.core.$ZodIssue): string {
  if (issue.code !== "unrecognized_keys") return issue.message;
  const [field] = issue.keys;
  return isName(field) ? `there is no field ${field}` : "there is an unknown field";
}

const isName = (value: unknown) => typeof value === "string" && namePattern.test(value);
