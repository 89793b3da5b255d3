// The command that runs this program again, in another process.
import { realpathSync } from "node:fs";
import { carried } from "../../../ffi/native.ts";
import type { Environment } from "../../hub/settings.ts";

/** An executable is the program itself; otherwise Bun runs its file. */
export function ownProgram(env: Environment = process.env): [string, ...string[]] {
  return carried ? [executable(env)] : [process.execPath, Bun.main];
}

/** By the name on the PATH that leads to it: a package manager changes what is behind that with each version. */
function executable(env: Environment): string {
  const found = Bun.which("mlx-serve", { PATH: env.PATH ?? "" });
  return found && realpathSync(found) === realpathSync(process.execPath) ? found : process.execPath;
}
