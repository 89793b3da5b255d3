// Checks the address to listen on. Separate from the server, so that commands that only need this start fast.
import { isIPv4 } from "node:net";

/** Returns whether the host is a loopback address; 0.0.0.0 and :: are not, since they are reachable from outside. */
export function isLoopback(host: string): boolean {
  const name = host.toLowerCase();
  return ["localhost", "::1", "[::1]"].includes(name) || (isIPv4(name) && name.startsWith("127."));
}

/** Returns why the server must not listen on this address, and how to allow it; undefined if it may listen. */
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
