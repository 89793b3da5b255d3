// The command that runs this program again in another process.
import { realpathSync } from "node:fs";
import { carried } from "../../../ffi/native.ts";
import type { Environment } from "../../hub/settings.ts";

/** Returns the command: the executable, or Bun with the main file. */
export function ownProgram(env: Environment = process.env): [string, ...string[]] {
  return carried ? [executable(env)] : [process.execPath, Bun.main];
}

/** Returns the executable, if possible as a link on the PATH: the link's target may move in an upgrade. */
function executable(env: Environment): string {
  const found = Bun.which("mlx-serve", { PATH: env.PATH ?? "" });
  return found && realpathSync(found) === realpathSync(process.execPath) ? found : process.execPath;
}
