// Runs the command-line tools of a service manager.
import type { Environment } from "../hub/settings.ts";

export type Ran = { readonly code: number; readonly stdout: string; readonly stderr: string };

/** Returns the path of a program; throws if it is not on the PATH. */
export function findTool(name: string, env: Environment, why: string): string {
  const found = Bun.which(name, { PATH: env.PATH ?? "" });
  if (found) return found;
  throw new Error(`${name} is not on the PATH: ${why}`);
}

export async function runTool(command: readonly string[], env: Environment): Promise<Ran> {
  const child = Bun.spawn([...command], { env, stdin: "ignore", stdout: "pipe", stderr: "pipe" });
  const [stdout, stderr, code] = await Promise.all([
    child.stdout.text(),
    child.stderr.text(),
    child.exited,
  ]);
  return { code, stdout, stderr };
}

/** Returns the error output of a failed command in one line. */
export function complaint({ code, stdout, stderr }: Ran): string {
  const said = (stderr.trim() || stdout.trim()).replace(/\s*\n\s*/g, "; ");
  return said || `exit code ${code}`;
}
