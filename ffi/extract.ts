// Extracts the libraries inside the executable, because the system's loader opens only files. They are written once,
// to a folder named after their content hash. Existing files are verified before use, and missing or damaged ones are
// replaced. If the cache is not writable, a temporary folder is used and removed when the process exits.
import {
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import type { EmbeddedFile } from "./embedded.ts";

/** Extracts the files unless they are in the cache; returns their folder. */
export function extract(files: readonly EmbeddedFile[], cache: string): string {
  const contents = files.map(({ path, sha256 }) => `${path} ${sha256}`).join("\n");
  const key = new Bun.CryptoHasher("sha256").update(contents).digest("hex").slice(0, 16);
  const folder = join(cache, "libraries", key);
  try {
    complete(folder, files);
    return folder;
  } catch (error) {
    return extractForThisRun(files, cache, (error as NodeJS.ErrnoException).code);
  }
}

function extractForThisRun(files: readonly EmbeddedFile[], cache: string, reason?: string): string {
  try {
    const folder = mkdtempSync(join(tmpdir(), "mlx-serve-"));
    process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
    complete(folder, files);
    return folder;
  } catch {
    throw new Error(
      `MLX's libraries can be written neither to ${cache} (${reason}) nor to ${tmpdir()}: ` +
        "name a folder with room in MLX_SERVE_CACHE",
    );
  }
}

/** Writes missing or damaged files. */
function complete(folder: string, files: readonly EmbeddedFile[]): void {
  const piece = Buffer.allocUnsafe(1 << 20);
  for (const { path, source, sha256 } of files) {
    const file = join(folder, path);
    if (!existsSync(file) || digest(file, piece) !== sha256) {
      mkdirSync(dirname(file), { recursive: true });
      replace(file, Bun.zstdDecompressSync(readFileSync(source)));
    }
  }
}

/** Writes to a temporary name and renames: no process opens a partial file, and open old files stay intact. */
function replace(file: string, content: Uint8Array): void {
  const partial = `${file}.${crypto.randomUUID()}`;
  try {
    writeFileSync(partial, content);
    renameSync(partial, file);
  } catch (error) {
    rmSync(partial, { force: true });
    throw error;
  }
}

/** Hashes in 1 MiB chunks, so that verifying a library does not load the whole file into memory. */
function digest(file: string, piece: Buffer): string {
  const hasher = new Bun.CryptoHasher("sha256");
  const opened = openSync(file, "r");
  try {
    for (let length = readSync(opened, piece); length > 0; length = readSync(opened, piece)) {
      hasher.update(piece.subarray(0, length));
    }
  } finally {
    closeSync(opened);
  }
  return hasher.digest("hex");
}
