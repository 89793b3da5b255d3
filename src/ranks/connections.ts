// What connects the ranks of a group: MLX's own ring or NCCL, or memory that they share. A process that is a rank finds
// in its variables what each needs to know; MLX reads its own by itself.
import { randomBytes } from "node:crypto";
import { existsSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Backend } from "../../ffi/native.ts";
import { type Connections, canShareMemory } from "../mlx/distributed.ts";
import type { Parallel } from "../model/weights/weights.ts";

type Ranks = { backend: Backend; parallel: Parallel; areLocal: boolean };

/** The first that connects such ranks does. */
const connections: readonly { name: Connections; connects(ranks: Ranks): boolean }[] = [
  // It sends nothing from one rank to another, as ranks do that have some of the layers each.
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

/** Whether those of this process are all of this machine. */
export function areLocal(): boolean {
  return process.env.MLX_SERVE_RANK_MEMORY !== undefined;
}

/** Where ranks are, in their order, and the port of each. */
export type Places = { addresses: readonly string[]; ports: readonly number[] };

/** What all ranks find in their variables. The file is MLX's own of hosts. */
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

/** Beside them, where all ranks are processes of this machine: a file in memory where there are such. */
export function memoryVariables(): { MLX_SERVE_RANK_MEMORY: string } {
  const folder = existsSync("/dev/shm") ? "/dev/shm" : tmpdir();
  const name = `mlx-serve-ranks-${randomBytes(8).toString("hex")}`;
  return { MLX_SERVE_RANK_MEMORY: join(folder, name) };
}
