// The ranks of `serve --ranks` and `serve --hosts`.
import { randomBytes } from "node:crypto";
import { availableParallelism } from "node:os";
import { backend } from "../../ffi/native.ts";
import { version } from "../../package.json";
import type { Settings } from "../config/settings.ts";
import { UsageError } from "../config/usage-error.ts";
import type { Logger } from "../log.ts";
import { type GroupStatus, RankGroup } from "../ranks/group.ts";
import { readHosts, ringPorts } from "../ranks/hosts.ts";
import { ownProgram } from "./own-program.ts";

/** Undefined where the model is not divided. */
export async function startRanks(
  settings: Settings,
  log: Logger,
  command: readonly string[] = ownProgram(),
): Promise<RankGroup | undefined> {
  const { ranks, hosts, rankPort, rankSecret, threads, parallelism: parallel } = settings;
  if (ranks > 1 && hosts !== undefined) {
    throw new UsageError(
      "--ranks and --hosts exclude each other: the file says how many there are",
    );
  }
  if (ranks === 1 && hosts === undefined) return undefined;
  if (hosts !== undefined && rankSecret === undefined) {
    throw new UsageError("--hosts needs a secret that all ranks know: set MLX_SERVE_RANK_SECRET");
  }
  if (hosts === undefined) return await startLocalRanks(ranks, { threads, parallel, log, command });
  const addresses = readHosts(hosts);
  return await RankGroup.start({
    hosts: addresses.map((address, rank) => ({ address, isLocal: rank === 0 })),
    parallel,
    secret: rankSecret!,
    version,
    control: { hostname: addresses[0]!, port: rankPort },
    ringPorts: ringPorts(addresses.length, rankPort),
    command,
    env: process.env,
    onChange: reporter(log),
  });
}

type LocalRanks = {
  threads?: number | undefined;
  parallel?: Settings["parallelism"];
  log?: Logger;
  command?: readonly string[];
};

/** They share the cores, and each has a GPU of its own where there are such. */
export async function startLocalRanks(
  count: number,
  { threads, parallel = "tensor", log, command = ownProgram() }: LocalRanks = {},
): Promise<RankGroup | undefined> {
  if (count === 1) return undefined;
  const each = threads ?? Math.max(1, Math.floor(availableParallelism() / count));
  return await RankGroup.start({
    hosts: Array.from({ length: count }, () => ({ address: LOCAL, isLocal: true })),
    parallel,
    secret: randomBytes(32).toString("hex"),
    version,
    control: { hostname: LOCAL, port: 0 },
    command,
    env: { ...process.env, MLX_SERVE_THREADS: String(each) },
    envOf: (rank) => (backend() === "cuda" ? { CUDA_VISIBLE_DEVICES: gpuOf(rank) } : {}),
    ...(log && { onChange: reporter(log) }),
  });
}

const LOCAL = "127.0.0.1";

/** Of those that this process may use. */
function gpuOf(rank: number): string {
  return process.env.CUDA_VISIBLE_DEVICES?.split(",")[rank] ?? String(rank);
}

/** A line when the group is whole, and one for each reason why it is not. */
function reporter(log: Logger): (status: GroupStatus) => void {
  let last: string | undefined;
  return ({ isFormed, loss, ranks }) => {
    if (isFormed) log.info({ ranks: ranks.length }, "the ranks are connected");
    else if (loss !== undefined && loss !== last) log.error({ reason: loss }, "a rank was lost");
    last = isFormed ? undefined : loss;
  };
}
