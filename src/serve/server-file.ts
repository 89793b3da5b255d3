// Where the command line finds the servers that run on this machine: a file each, which only its owner can
// read, with the address and a key that the server made for this.
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
  /** How long requests under way may take when it is told to stop. */
  drainMs: z.int(),
});
export type ServerEntry = z.infer<typeof ServerEntry>;

export function rememberServer(entry: ServerEntry, env: Environment = process.env): void {
  mkdirSync(folder(env), { recursive: true, mode: 0o700 });
  const path = fileOf(entry.pid, env);
  // Renamed when it is whole: others may look at any moment.
  writeFileSync(`${path}.new`, JSON.stringify(entry), { mode: 0o600 });
  renameSync(`${path}.new`, path);
}

export function forgetServer(pid: number, env: Environment = process.env): void {
  try {
    rmSync(fileOf(pid, env));
  } catch {
    // A file that stays tells of a process that is gone, and so of nothing.
  }
}

/** Those whose process is there; what a crash has left behind is removed. */
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
    // Another user's process cannot be signalled, but is there.
    return codeOf(error) === "EPERM";
  }
}

function folder(env: Environment): string {
  return join(cacheDirectory(env), "servers");
}

/** By the process: two servers can have the same port, at different addresses or one after the other. */
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
