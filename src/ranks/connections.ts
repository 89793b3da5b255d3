// Chooses the transport between ranks (MLX's ring over TCP, NCCL, or shared memory) and makes the environment
// variables that configure it in each rank's process.
import { randomBytes } from "node:crypto";
import { existsSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Backend } from "../../ffi/native.ts";
import { type Connections, canShareMemory } from "../mlx/distributed.ts";
import type { Parallel } from "../model/weights/stages.ts";

type Ranks = { backend: Backend; parallel: Parallel; areLocal: boolean };

/** Transports, the preferred one first. */
const connections: readonly { name: Connections; connects(ranks: Ranks): boolean }[] = [
  // MLX's NCCL backend has no send and receive, which pipelines need.
  {
    name: "nccl",
    connects: ({ backend, parallel }) => backend === "cuda" && parallel === "tensor",
  },
  { name: "shared", connects: ({ areLocal }) => areLocal && canShareMemory() },
  { name: "ring", connects: () => true },
];

export function connectionsOf(ranks: Ranks): Connections {
  return connections.find(({ connects }) => connects(ranks))!.name;
}

/** Whether all ranks of this process's group are on this machine. */
export function areLocal(): boolean {
  return process.env.MLX_SERVE_RANK_MEMORY !== undefined;
}

/** The address and the ring port of each rank. */
export type Places = { addresses: readonly string[]; ports: readonly number[] };

/** Writes MLX's host file; returns the environment variables that every rank gets. */
export function connectionVariables(
  file: string,
  { addresses, ports }: Places,
): Record<string, string> {
  writeFileSync(file, JSON.stringify(addresses.map((address, i) => [`${address}:${ports[i]}`])));
  return {
    MLX_HOSTFILE: file,
    MLX_WORLD_SIZE: String(addresses.length),
    NCCL_HOST_IP: addresses[0]!,
    NCCL_PORT: String(ports[0]),
  };
}

/** Returns the variable for ranks that are all local: the path of the file they share, in /dev/shm if it exists. */
export function memoryVariables(): { MLX_SERVE_RANK_MEMORY: string } {
  const folder = existsSync("/dev/shm") ? "/dev/shm" : tmpdir();
  const name = `mlx-serve-ranks-${randomBytes(8).toString("hex")}`;
  return { MLX_SERVE_RANK_MEMORY: join(folder, name) };
}
