// Runs a program of this checkout, after installing its requirements:
//   node scripts/launch.mjs <program.ts> [arguments]
// Plain JavaScript, because it runs before bun is installed. It installs the packages, including bun; scripts/setup.ts
// installs the rest.
import { spawn, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const bun = join(root, "node_modules", ".bin", "bun");

/** @type {(message: string) => never} */
function fail(message) {
  console.error(`mlx-serve: ${message}`);
  process.exit(1);
}

// The stamp is written last, so an interrupted installation is repeated.
const stamp = join(root, "node_modules", ".mlx-serve-packages");
const lock = createHash("sha256")
  .update(readFileSync(join(root, "package-lock.json")))
  .digest("hex");
if (!existsSync(stamp) || readFileSync(stamp, "utf8") !== lock) {
  const npm = spawnSync("npm", ["ci", "--no-audit", "--no-fund"], { cwd: root, stdio: "inherit" });
  const installed = npm.error && process.versions.bun ? installWithBun() : npm;
  if (installed.error) fail("npm is missing: install Node.js with npm, or bun");
  if (installed.status !== 0) fail("the packages could not be installed; run the command again");
  writeFileSync(stamp, lock);
}

function installWithBun() {
  return spawnSync(process.execPath, ["install"], { cwd: root, stdio: "inherit" });
}

const [program = "", ...args] = process.argv.slice(2);
// Each backend has its own libraries.
const named = args.findIndex((arg) => /^--backend(=|$)/.test(arg));
const backend = args[named]?.split("=")[1] ?? args[named + 1] ?? "";
const isOne = named >= 0 && ["cpu", "cuda", "metal"].includes(backend);
const setup = spawnSync(bun, [join(root, "scripts", "setup.ts")], {
  stdio: "inherit",
  env: isOne ? { ...process.env, MLX_SERVE_BACKEND: backend } : process.env,
});
if (setup.status !== 0) process.exit(setup.status ?? 1);

const child = spawn(bun, [join(root, program), ...args], { stdio: "inherit" });
child.on("exit", (code, signal) => {
  if (signal) process.kill(process.pid, signal);
  else process.exit(code ?? 1);
});
// A terminal sends Ctrl-C to the child too; other signals reach only this process.
process.on("SIGINT", () => {});
for (const signal of /** @type {const} */ (["SIGTERM", "SIGHUP"])) {
  process.on(signal, () => child.kill(signal));
}
