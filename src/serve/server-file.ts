// Where the command line finds the servers that run on this machine: a file each, which only its owner can
// read, with the address and a key that the server made for this.
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { cacheDirectory } from "../../ffi/native.ts";
import type { Environment } from "../hub/settings.ts";

export const ServerEntry = z.object({ url: z.url(), key: z.string(), pid: z.int() });
export type ServerEntry = z.infer<typeof ServerEntry>;

export function rememberServer(entry: ServerEntry, env: Environment = process.env): void {
  mkdirSync(folder(env), { recursive: true, mode: 0o700 });
  writeFileSync(fileOf(entry.url, env), JSON.stringify(entry), { mode: 0o600 });
}

export function forgetServer(url: string, env: Environment = process.env): void {
  rmSync(fileOf(url, env), { force: true });
}

/** Those whose process is there; what a crash has left behind is removed. */
export function knownServers(env: Environment = process.env): ServerEntry[] {
  return namesIn(folder(env)).flatMap((name) => {
    const path = join(folder(env), name);
    const entry = read(path);
    if (entry && isRunning(entry.pid)) return [entry];
    rmSync(path, { force: true });
    return [];
  });
}

function folder(env: Environment): string {
  return join(cacheDirectory(env), "servers");
}

function fileOf(url: string, env: Environment): string {
  return join(folder(env), `${new URL(url).port || "80"}.json`);
}

function namesIn(path: string): string[] {
  try {
    return readdirSync(path);
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

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    // Another user's process cannot be signalled, but is there.
    return error instanceof Error && "code" in error && error.code === "EPERM";
  }
}
