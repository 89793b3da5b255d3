// Reads host files of mlx.launch: a list with one entry per rank, `{ "ssh": "name", "ips": ["10.0.0.1"] }`.
import { readFileSync } from "node:fs";
import { z } from "zod";

/** Rejects names that ssh would take for an option. */
const Ssh = z.string().regex(/^[^-\s]\S*$/);

const Hosts = z
  .array(z.object({ ssh: Ssh.optional(), ips: z.array(z.string().min(1)).min(1) }))
  .min(2);

/** Host of a rank: its address, and its name for ssh. */
export type Host = { address: string; ssh?: string | undefined };

/** Reads the host of each rank from a host file. */
export function readHosts(path: string): Host[] {
  const problem = (reason: string) => new Error(`${path}: ${reason}`);
  let json: unknown;
  try {
    json = JSON.parse(readFileSync(path, "utf8"));
  } catch (error) {
    throw problem(error instanceof Error ? error.message : String(error));
  }
  const { data, success } = Hosts.safeParse(json);
  if (!success) {
    throw problem('expected a list of two or more hosts, each with "ips": ["its address"]');
  }
  return data.map(({ ips, ssh }) => ({ address: ips[0]!, ssh }));
}

/** Port of the first host at which ranks reach the server; ranks reach each other at the ports that follow. */
export const DEFAULT_PORT = 32322;

export function ringPorts(count: number, control: number): number[] {
  return Array.from({ length: count }, (_, i) => control + 1 + i);
}
