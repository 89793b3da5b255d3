// Finds and runs the programs that set-up needs, and says how to install missing ones.
import { access, constants, mkdir } from "node:fs/promises";

/** A one-line error that the user can fix. */
export class SetupError extends Error {}

export type Tool = "python3" | "pip" | "cargo" | "c++";

const managers = ["apt-get", "dnf", "pacman", "zypper", "apk", "brew"] as const;
type Manager = (typeof managers)[number];

const packages: Record<Tool, Record<Manager, string>> = {
  python3: same("python3", { pacman: "python", brew: "python" }),
  pip: same("python3-pip", { pacman: "python-pip", apk: "py3-pip", brew: "python" }),
  cargo: same("cargo", { "apt-get": "rustup", dnf: "rustup", pacman: "rustup", brew: "rust" }),
  "c++": same("gcc-c++", { "apt-get": "g++", pacman: "gcc", apk: "g++", brew: "gcc" }),
};

function same(name: string, others: Partial<Record<Manager, string>>): Record<Manager, string> {
  const names = managers.map((manager) => [manager, others[manager] ?? name]);
  return Object.fromEntries(names) as Record<Manager, string>;
}

/** Throws an error that names all missing tools and the command to install them. */
export function requireTools(tools: readonly Tool[]): void {
  const missing = tools.filter((tool) => !present(tool));
  if (missing.length === 0) return;
  const verb = missing.length === 1 ? "is" : "are";
  const how = installCommand(missing);
  throw new SetupError(`${missing.join(", ")} ${verb} missing: install with ${how}`);
}

export function installCommand(tools: readonly Tool[]): string {
  const manager = managers.find((name) => Bun.which(name));
  const verb = manager === "pacman" ? "-S" : manager === "apk" ? "add" : "install";
  const names = [...new Set(tools.map((tool) => packages[tool][manager ?? "apt-get"]))].join(" ");
  return manager ? `${manager} ${verb} ${names}` : `your package manager (${names})`;
}

/** The first version with `cargo info`. */
const OLDEST_CARGO = "1.82.0";

/** Throws if cargo is missing, too old, or rustup's without a toolchain. */
export function requireCargo(): void {
  requireTools(["cargo"]);
  const { exitCode, stdout } = Bun.spawnSync(["cargo", "--version"], { stderr: "ignore" });
  const version = exitCode === 0 ? /\d+\.\d+\.\d+/.exec(stdout.toString())?.[0] : undefined;
  if (version && Bun.semver.order(version, OLDEST_CARGO) >= 0) return;
  const fault = version ? `cargo ${version} is older than ${OLDEST_CARGO}` : "cargo does not run";
  const rustup = version ? "rustup update stable" : "rustup default stable";
  const how = Bun.which("rustup")
    ? `run \`${rustup}\``
    : `install with ${installCommand(["cargo"])}`;
  throw new SetupError(`${fault}: ${how}`);
}

function present(tool: Tool): boolean {
  if (tool !== "pip") return Bun.which(tool) !== null;
  return Bun.which("python3") !== null && succeeds("python3", "-m", "pip", "--version");
}

/** Whether a command exits with 0; its output is discarded. */
export function succeeds(...command: string[]): boolean {
  return Bun.spawnSync(command, { stdio: ["ignore", "ignore", "ignore"] }).exitCode === 0;
}

/** Runs a program that shows its own progress. */
export function run(command: readonly string[], failure: string): void {
  const { exitCode } = Bun.spawnSync([...command], { stdio: ["ignore", "inherit", "inherit"] });
  if (exitCode !== 0) throw new SetupError(failure);
}

/** Waits for all of them even if one fails, so that nothing runs on, and throws the first failure in their order. */
export async function settled<T extends readonly unknown[] | []>(promises: T) {
  await Promise.allSettled(promises);
  return await Promise.all(promises);
}

/** Runs a program and shows the end of its output only if it fails. */
export async function runQuietly(command: readonly string[], failure: string): Promise<void> {
  const child = Bun.spawn(["/bin/sh", "-c", 'exec "$@" 2>&1', "sh", ...command], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const said = await child.stdout.text();
  if ((await child.exited) === 0) return;
  console.error(said.split("\n").slice(-20).join("\n"));
  throw new SetupError(failure);
}

/** Creates the folder, or throws an error that says what to do. */
export async function writableDirectory(path: string): Promise<string> {
  try {
    await mkdir(path, { recursive: true });
    await access(path, constants.W_OK);
    return path;
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    throw new SetupError(
      `cannot write to ${path} (${code}): set MLX_SERVE_CACHE to another folder`,
    );
  }
}

/** One line of progress: redrawn on a terminal, and printed every 25% elsewhere. */
export function progress(name: string): (percent: number) => void {
  let shown = -1;
  return (percent) => {
    const step = process.stderr.isTTY ? 1 : 25;
    if (percent < shown + step && percent !== 100) return;
    if (percent === shown) return;
    shown = percent;
    const line = `mlx-serve: ${name} ${percent}%`;
    if (process.stderr.isTTY) process.stderr.write(`\r${line}${percent === 100 ? "\n" : ""}`);
    else console.error(line);
  };
}
