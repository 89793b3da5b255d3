#!/usr/bin/env node
// Runs the executable that npm has installed for this system; an explicitly installed one takes precedence.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";

const { resolve } = createRequire(import.meta.url);
const system = `${process.platform}-${process.arch}`;

/** @type {(name: string) => string | undefined} */
function find(name) {
  try {
    return resolve(`@mlx-serve/${name}/mlx-serve`);
  } catch {
    return undefined;
  }
}

const executable = find(`${system}-cuda`) ?? find(system);
if (!executable) {
  console.error(
    `mlx-serve: @mlx-serve/${system} is not installed: install it, if it exists for this system`,
  );
  process.exit(1);
}

// A terminal sends Ctrl-C to the child too; other signals reach only this process.
process.on("SIGINT", () => {});
for (const signal of /** @type {const} */ (["SIGTERM", "SIGHUP"])) {
  process.on(signal, () => child.kill(signal));
}
const child = spawn(executable, process.argv.slice(2), { stdio: "inherit" });
child.on("exit", (code, signal) => {
  if (signal) process.kill(process.pid, signal);
  else process.exit(code ?? 1);
});
