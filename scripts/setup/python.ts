// Python environments with packages from PyPI, created once in the cache.
import { existsSync, mkdirSync, renameSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { cacheDirectory } from "../../ffi/native.ts";

/** The interpreter of the environment `name`, which must identify the packages and their versions. */
export function pythonWith(name: string, packages: readonly string[]): string {
  const folder = join(cacheDirectory(), "python", name);
  const python = join(folder, "bin", "python");
  if (existsSync(python)) return python;
  const partial = `${folder}.${crypto.randomUUID()}`;
  try {
    mkdirSync(dirname(folder), { recursive: true });
    run("python3", "-m", "venv", partial);
    const pip = [join(partial, "bin", "python"), "-m", "pip", "--disable-pip-version-check"];
    run(...pip, "install", "--quiet", ...packages);
    // Another run may have created it meanwhile; an environment whose python is gone is replaced.
    if (!existsSync(python)) {
      rmSync(folder, { recursive: true, force: true });
      renameSync(partial, folder);
    }
    return python;
  } finally {
    rmSync(partial, { recursive: true, force: true });
  }
}

function run(...command: string[]): void {
  const { exitCode, stderr } = Bun.spawnSync(command, { stdio: ["ignore", "ignore", "pipe"] });
  if (exitCode !== 0) throw new Error(`${command.join(" ")} failed: ${stderr}`);
}
