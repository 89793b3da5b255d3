// Lets the command line find the servers of this machine: each writes a file that only its owner can read, with its
// address and a key for the command line.
import { mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { cacheDirectory } from "../../ffi/native.ts";
import { codeOf } from "../hub/hub-error.ts";
import type { Environment } from "../hub/settings.ts";

export const ServerEntry = z.object({
  url: z.url(),
  key: z.string(),
  pid: z.int().positive(),
  /** Milliseconds that a shutdown waits for running requests. */
  drainMs: z.int(),
});
export type ServerEntry = z.infer<typeof ServerEntry>;

export function rememberServer(entry: ServerEntry, env: Environment = process.env): void {
  mkdirSync(folder(env), { recursive: true, mode: 0o700 });
  const path = fileOf(entry.pid, env);
  // The file is renamed once it is complete, since other processes may read it at any time.
  writeFileSync(`${path}.new`, JSON.stringify(entry), { mode: 0o600 });
  renameSync(`${path}.new`, path);
}

export function forgetServer(pid: number, env: Environment = process.env): void {
  try {
    rmSync(fileOf(pid, env));
  } catch {
    // A remaining file does no harm: it names an ended process and is ignored.
  }
}

/** Returns the running servers, and removes the files of crashed ones. */
export function knownServers(env: Environment = process.env): ServerEntry[] {
  return namesIn(folder(env)).flatMap((name) => {
    const entry = read(join(folder(env), name));
    if (!entry) return [];
    if (isRunning(entry.pid)) return [entry];
    forgetServer(entry.pid, env);
    return [];
  });
}

export function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    // With EPERM the process exists, but belongs to another user.
    return codeOf(error) === "EPERM";
  }
}

function folder(env: Environment): string {
  return join(cacheDirectory(env), "servers");
}

/** Returns the path of a server's file, named by process id: servers at different addresses may share a port. */
function fileOf(pid: number, env: Environment): string {
  return join(folder(env), `${pid}.json`);
}

function namesIn(path: string): string[] {
  try {
    return readdirSync(path).filter((name) => name.endsWith(".json"));
  } catch {
    return [];
  }
}

function read(path: string): ServerEntry | undefined {
  try {
    return ServerEntry.safeParse(JSON.parse(readFileSync(path, "utf8"))).data;
  } catch {
    return undefined;
  }
}
