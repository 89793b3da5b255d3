// Processes that are the ranks of a group on this machine. All are gone when they are disposed, whatever has happened.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Connections } from "../../src/mlx/distributed.ts";
import type { Parallel } from "../../src/model/weights/stages.ts";
import { connectionVariables, memoryVariables } from "../../src/ranks/connections.ts";
import { freePorts } from "../../src/ranks/group.ts";
import type { CollectiveResult } from "./collectives-program.ts";
import type { RankResult } from "./rank-program.ts";

/** Runs tiny models on so many ranks, each named after how it is divided, as tensor:llama; what each rank says of each. */
export function runOnRanks(
  size: number,
  subjects: readonly `${Parallel}:${string}`[],
  timeoutMs: number,
  connections: Connections = "shared",
): Promise<RankResult[]> {
  return linesOf("rank-program.ts", [connections, ...subjects], size, timeoutMs);
}

/** What collectives make on each of so many ranks. */
export function runCollectives(
  size: number,
  connections: Connections,
  timeoutMs: number,
): Promise<CollectiveResult[]> {
  return linesOf("collectives-program.ts", [connections], size, timeoutMs);
}

/** What all ranks print, a line of JSON each. */
async function linesOf<T>(
  program: string,
  args: readonly string[],
  size: number,
  timeoutMs: number,
): Promise<T[]> {
  const folder = mkdtempSync(join(tmpdir(), "ranks-"));
  const addresses = Array<string>(size).fill("127.0.0.1");
  const places = { addresses, ports: freePorts(size) };
  const env = {
    ...process.env,
    ...connectionVariables(join(folder, "hosts.json"), places),
    ...memoryVariables(),
    OPENBLAS_NUM_THREADS: "1",
  };
  const ranks = Array.from({ length: size }, (_, rank) =>
    Bun.spawn([process.execPath, join(import.meta.dir, program), ...args], {
      env: { ...env, MLX_RANK: String(rank) },
      stderr: "pipe",
    }),
  );
  const timer = setTimeout(() => end(), timeoutMs);
  const end = () => {
    for (const each of ranks) each.kill("SIGKILL");
  };
  try {
    const texts = await Promise.all(ranks.map(({ stdout }) => new Response(stdout).text()));
    return texts
      .flatMap((text) => text.trim().split("\n").filter(Boolean))
      .map((line) => JSON.parse(line));
  } finally {
    clearTimeout(timer);
    end();
    rmSync(folder, { recursive: true });
    rmSync(env.MLX_SERVE_RANK_MEMORY, { force: true });
  }
}
