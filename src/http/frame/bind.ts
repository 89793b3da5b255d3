// Where a server may listen. Apart from the server itself, so that commands which only ask this start fast.
import { isIPv4 } from "node:net";

/** Loopback addresses; 0.0.0.0 and :: are reachable from outside. */
export function isLoopback(host: string): boolean {
  const name = host.toLowerCase();
  return ["localhost", "::1", "[::1]"].includes(name) || (isIPv4(name) && name.startsWith("127."));
}

/** Why the server must not listen there, and how to fix it. */
export function bindProblem(bind: {
  host: string;
  keysSet: boolean;
  insecureNoAuth: boolean;
}): string | undefined {
  if (isLoopback(bind.host) || bind.keysSet || bind.insecureNoAuth) return undefined;
  return (
    `on ${bind.host} anyone who reaches this machine could use the server: set --api-key, ` +
    "make a key with `mlx-serve keys add <name>`, or pass --insecure-no-auth"
  );
}
