// The system's loader opens files, so the libraries inside the executable are written out: once, to a
// folder named after their contents. What lies there is checked before it is used. Where the cache
// cannot be written, a folder of its own is made for this run.
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import type { EmbeddedFile } from "./embedded.ts";

/** The folder that holds the files, each as it was built in. */
export function extract(files: readonly EmbeddedFile[], cache: string): string {
  const contents = files.map(({ path, sha256 }) => `${path} ${sha256}`).join("\n");
  const folder = join(cache, "libraries", digest(contents).slice(0, 16));
  if (holds(folder, files)) return folder;
  try {
    mkdirSync(dirname(folder), { recursive: true });
    const staging = mkdtempSync(`${folder}.`);
    write(files, staging);
    // A damaged folder makes room; where another process was first, its folder is as good as ours.
    if (!holds(folder, files)) rmSync(folder, { recursive: true, force: true });
    if (existsSync(folder)) rmSync(staging, { recursive: true });
    else renameSync(staging, folder);
    return folder;
  } catch {
    const folder = mkdtempSync(join(tmpdir(), "mlx-serve-"));
    write(files, folder);
    process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
    return folder;
  }
}

function write(files: readonly EmbeddedFile[], folder: string): void {
  for (const { path, source } of files) {
    const target = join(folder, path);
    mkdirSync(dirname(target), { recursive: true });
    writeFileSync(target, readFileSync(source));
  }
}

function holds(folder: string, files: readonly EmbeddedFile[]): boolean {
  return files.every(({ path, sha256 }) => {
    const file = join(folder, path);
    return existsSync(file) && digest(readFileSync(file)) === sha256;
  });
}

function digest(content: Uint8Array | string): string {
  return new Bun.CryptoHasher("sha256").update(content).digest("hex");
}
