// A real browser without system packages: Chromium from npm, unpacked into the cache when it is first needed.
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { type Browser, chromium } from "playwright-core";
import { cacheDirectory } from "../../ffi/native.ts";
import { devDependencies } from "../../package.json";

/** The package has Chromium for this system alone; elsewhere an installed one can be named. */
const installed = process.env.CHROMIUM;

export const hasBrowser =
  installed !== undefined || (process.platform === "linux" && process.arch === "x64");

export async function openBrowser(): Promise<Browser> {
  // Not the package's own arguments: they switch off what keeps origins apart.
  const args = ["--no-sandbox", "--disable-gpu"];
  if (installed !== undefined) return await chromium.launch({ executablePath: installed, args });
  const folder = unpacked();
  const executablePath = join(folder, "chromium");
  return await chromium.launch({ executablePath, args, env: environment(folder, executablePath) });
}

/** The package unpacks into the temporary folder, file by file: two processes would disturb each other. */
function unpacked(): string {
  const parent = join(cacheDirectory(), "chromium");
  const folder = join(parent, devDependencies["@sparticuz/chromium"]);
  if (existsSync(folder)) return folder;
  mkdirSync(parent, { recursive: true });
  const partial = mkdtempSync(join(parent, ".partial-"));
  const script = 'await (await import("@sparticuz/chromium")).default.executablePath();';
  // The variable has it unpack the libraries too that some systems lack.
  const env = { ...process.env, TMPDIR: partial, AWS_LAMBDA_JS_RUNTIME: "nodejs22.x" };
  const options = { cwd: import.meta.dir, env };
  const { exitCode, stderr } = Bun.spawnSync([process.execPath, "-e", script], options);
  if (exitCode !== 0) throw new Error(`Chromium cannot be unpacked: ${stderr}`);
  try {
    renameSync(partial, folder);
  } catch (error) {
    // Another process was first.
    rmSync(partial, { recursive: true });
    if (!existsSync(folder)) throw error;
  }
  return folder;
}

/** Without a variable where the system has everything. */
function environment(folder: string, executable: string): Record<string, string | undefined> {
  const { stdout } = Bun.spawnSync(["ldd", executable]);
  const lacksLibraries = stdout.includes("not found");
  return {
    ...process.env,
    ...(lacksLibraries && { LD_LIBRARY_PATH: join(folder, "al2023", "lib") }),
    ...(!existsSync("/etc/fonts") && { FONTCONFIG_PATH: join(folder, "fonts") }),
  };
}
