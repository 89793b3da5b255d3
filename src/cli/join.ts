// mlx-serve join: a rank of a model that is divided among hosts. A child process computes; when the group of ranks
// breaks up, the child ends and is restarted.
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join as joinPath } from "node:path";
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";
import { engineSetup } from "../../ffi/native.ts";
import { version } from "../../package.json";
import { UsageError } from "../config/usage-error.ts";
import { resolveModel } from "../hub/source.ts";
import { connectionVariables } from "../ranks/connections.ts";
import { type RankProcess, rankVariables, readRankVariables } from "../ranks/group.ts";
import { DEFAULT_PORT, readHosts, ringPorts } from "../ranks/hosts.ts";
import { runRank } from "../ranks/rank.ts";
import { Invitation } from "../ranks/ssh.ts";
import { ownProgram } from "./server/own-program.ts";

const AGAIN_MS = 1000;

const options = {
  hosts: { type: "string" },
  rank: { type: "string" },
  "rank-port": { type: "string", default: String(DEFAULT_PORT) },
  "rank-secret": { type: "string" },
  stdin: { type: "boolean" },
} as const;

export async function join(args: string[]): Promise<void> {
  const own = readRankVariables(process.env);
  if (own) await beRank(own);
  else await keepRank(args);
}

/** Computes as a rank, then kills this process: its thread may be blocked on other ranks. */
async function beRank(own: RankProcess): Promise<void> {
  // Ignores signals, which terminals and service managers send to all processes; the server ends this one later.
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.on(signal, () => {});
  const reason = await runRank(own, engineSetup(), version);
  console.error(`rank ${own.rank}: ${reason}`);
  process.kill(process.pid, "SIGKILL");
}

async function keepRank(args: string[]): Promise<void> {
  const { values, positionals } = parseArgs({ args, options, allowPositionals: true });
  const [model] = positionals;
  if (values.stdin) await joinInvited();
  else await joinAgain(invitationOf(values), model);
}

/** Joins over ssh: the server sends the invitation on stdin, and closes stdin to end this process. */
async function joinInvited(): Promise<void> {
  const lines = createInterface({ input: process.stdin });
  const [line] = (await once(lines, "line")) as [string];
  lines.once("close", () => process.kill(process.pid, "SIGTERM"));
  await joinAgain(Invitation.parse(JSON.parse(line)), undefined);
}

type Flags = ReturnType<typeof parseArgs<{ options: typeof options }>>["values"];

function invitationOf(values: Flags): Invitation {
  const secret = values["rank-secret"] ?? process.env.MLX_SERVE_RANK_SECRET;
  if (values.hosts === undefined || values.rank === undefined) {
    throw new UsageError("join needs --hosts <file> and --rank <n>");
  }
  if (!secret) throw new UsageError("join needs the server's secret: set MLX_SERVE_RANK_SECRET");
  const addresses = readHosts(values.hosts).map(({ address }) => address);
  const rank = Number(values.rank);
  if (!Number.isInteger(rank) || rank < 1 || rank >= addresses.length) {
    throw new UsageError(`--rank is from 1 to ${addresses.length - 1}: the server is rank 0`);
  }
  return { addresses, rank, port: Number(values["rank-port"]), secret };
}

/** Joins with a new rank process whenever one ends, until this process is stopped. */
async function joinAgain(
  { addresses, rank, port, secret }: Invitation,
  model: string | undefined,
): Promise<void> {
  const folder = mkdtempSync(joinPath(tmpdir(), "mlx-serve-join-"));
  const places = { addresses, ports: ringPorts(addresses.length, port) };
  const server = `${addresses[0]}:${port}`;
  const env = {
    ...process.env,
    ...connectionVariables(joinPath(folder, "ring.json"), places),
    ...rankVariables({ rank, server, secret }),
    ...(model !== undefined && { MLX_SERVE_RANK_MODEL: resolveModel(model).path }),
  };
  let child: Bun.Subprocess | undefined;
  let isStopped = false;
  const stop = () => {
    isStopped = true;
    child?.kill("SIGKILL");
  };
  process.on("SIGINT", stop);
  process.on("SIGTERM", stop);
  console.error(`rank ${rank} of ${addresses.length}, for the server at ${server}`);
  while (!isStopped) {
    child = Bun.spawn([...ownProgram(), "join"], { env, stdio: ["ignore", "inherit", "inherit"] });
    await child.exited;
    if (!isStopped) await Bun.sleep(AGAIN_MS);
  }
  rmSync(folder, { recursive: true, force: true });
}
