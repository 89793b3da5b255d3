// Processes that are the ranks of a group on this machine. All are gone when they are disposed, whatever has happened.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Parallel } from "../../src/model/weights.ts";
import { freePorts } from "../../src/ranks/group.ts";
import type { RankResult } from "./rank-program.ts";

const program = join(import.meta.dir, "rank-program.ts");

/** Runs these tiny models on so many ranks; what each rank says of each. */
export async function runOnRanks(
  size: number,
  names: readonly string[],
  timeoutMs: number,
  parallel: Parallel = "tensor",
): Promise<RankResult[]> {
  const folder = mkdtempSync(join(tmpdir(), "ranks-"));
  const hosts = join(folder, "hosts.json");
  writeFileSync(hosts, JSON.stringify(freePorts(size).map((port) => [`127.0.0.1:${port}`])));
  const ranks = Array.from({ length: size }, (_, rank) =>
    Bun.spawn([process.execPath, program, parallel, ...names], {
      env: {
        ...process.env,
        MLX_RANK: String(rank),
        MLX_HOSTFILE: hosts,
        OPENBLAS_NUM_THREADS: "1",
      },
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
  }
}
