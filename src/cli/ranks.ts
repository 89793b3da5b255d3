// Starts the ranks of `serve --ranks` and `serve --hosts`.
import { randomBytes } from "node:crypto";
import { availableParallelism } from "node:os";
import { backend } from "../../ffi/native.ts";
import { version } from "../../package.json";
import type { Settings } from "../config/settings.ts";
import { UsageError } from "../config/usage-error.ts";
import type { Division } from "../engine/protocol.ts";
import type { Logger } from "../log.ts";
import { type GroupStatus, RankGroup } from "../ranks/group.ts";
import { type Host, readHosts, ringPorts } from "../ranks/hosts.ts";
import { ownProgram } from "./server/own-program.ts";

/** Starts the ranks that the settings ask for; returns undefined if the model is not divided. */
export async function startRanks(
  settings: Settings,
  log: Logger,
  command: readonly string[] = ownProgram(),
): Promise<RankGroup | undefined> {
  const { ranks, hosts, rankPort, rankSecret, threads } = settings;
  if (ranks > 1 && hosts !== undefined) {
    throw new UsageError(
      "--ranks and --hosts exclude each other: the file determines the number of ranks",
    );
  }
  if (ranks === 1 && hosts === undefined) {
    if (settings.layers) throw new UsageError("--layers needs ranks: set --ranks or --hosts");
    return undefined;
  }
  if (hosts === undefined) {
    const division = divisionOf(settings, ranks);
    return await startLocalRanks(ranks, { threads, division, log, command });
  }
  const [first, ...others] = readHosts(hosts) as [Host, ...Host[]];
  if (rankSecret === undefined && others.some(({ ssh }) => ssh === undefined)) {
    throw new UsageError(
      "--hosts needs a secret that all ranks know, unless ssh starts them: set MLX_SERVE_RANK_SECRET",
    );
  }
  const size = 1 + others.length;
  return await RankGroup.start({
    hosts: [
      { address: first.address, isLocal: true },
      ...others.map((host) => ({ ...host, isLocal: false })),
    ],
    division: divisionOf(settings, size),
    secret: rankSecret ?? newSecret(),
    version,
    control: { hostname: first.address, port: rankPort },
    ringPorts: ringPorts(size, rankPort),
    command,
    env: process.env,
    onChange: reporter(log),
  });
}

function divisionOf({ parallel, layers }: Settings, ranks: number): Division {
  if (layers && parallel === "tensor") {
    throw new UsageError("--layers is for --parallel pipeline: with tensor each rank has all");
  }
  if (layers && layers.length !== ranks) {
    throw new UsageError(`--layers has ${layers.length} ranges for ${ranks} ranks`);
  }
  return { parallel, layers };
}

type LocalRanks = {
  threads?: number | undefined;
  division?: Division;
  log?: Logger;
  command?: readonly string[];
};

/** Starts `count` ranks on this machine; none for a count of 1, since a group of one only adds messages. */
export async function startLocalRanks(
  count: number,
  options: LocalRanks = {},
): Promise<RankGroup | undefined> {
  return count === 1 ? undefined : await startLocalGroup(count, options);
}

/** Starts ranks on this machine. They share its CPU cores; on CUDA, each has a GPU of its own. */
export async function startLocalGroup(
  count: number,
  { threads, division = { parallel: "auto" }, log, command = ownProgram() }: LocalRanks = {},
): Promise<RankGroup> {
  const each = threads ?? Math.max(1, Math.floor(availableParallelism() / count));
  return await RankGroup.start({
    hosts: Array.from({ length: count }, () => ({ address: LOCAL, isLocal: true })),
    division,
    secret: newSecret(),
    version,
    control: { hostname: LOCAL, port: 0 },
    command,
    env: { ...process.env, MLX_SERVE_THREADS: String(each) },
    envOf: (rank) => (backend() === "cuda" ? { CUDA_VISIBLE_DEVICES: gpuOf(rank) } : {}),
    ...(log && { onChange: reporter(log) }),
  });
}

const LOCAL = "127.0.0.1";

const newSecret = () => randomBytes(32).toString("hex");

/** Returns the GPU on which a rank computes: rank i gets the GPU of index i among the visible ones. */
function gpuOf(rank: number): string {
  return process.env.CUDA_VISIBLE_DEVICES?.split(",")[rank] ?? String(rank);
}

/** Returns a function that logs when the group of ranks is complete, and each reason why it is not. */
function reporter(log: Logger): (status: GroupStatus) => void {
  let last: string | undefined;
  return ({ isFormed, loss, ranks, connections }) => {
    if (isFormed) log.info({ ranks: ranks.length, by: connections }, "the ranks are connected");
    else if (loss !== undefined && loss !== last) log.error({ reason: loss }, "a rank was lost");
    last = isFormed ? undefined : loss;
  };
}
