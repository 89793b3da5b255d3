// Finds external programs for scripts: installed ones, or packages of the distribution unpacked into the cache.
import { existsSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { basename, join } from "node:path";
import { cacheDirectory } from "../../ffi/native.ts";
import { fetchProgram } from "./fetch.ts";

export type Program = { path: string; env: Record<string, string | undefined> };

/** `path`: its path in the package. */
export async function findProgram(name: string, path: string): Promise<Program> {
  const own = Bun.which(basename(path)) ?? (existsSync(`/${path}`) ? `/${path}` : undefined);
  if (own) return { path: own, env: process.env };
  const folder = join(cacheDirectory(), name);
  if (!existsSync(join(folder, path))) {
    console.error(`mlx-serve: fetching ${name} with apt-get`);
    await mkdir(folder, { recursive: true });
    await fetchProgram(name, folder);
  }
  const system = `${process.arch === "x64" ? "x86_64" : "aarch64"}-linux-gnu`;
  const libraries = [`usr/lib/${system}`, `lib/${system}`].map((each) => join(folder, each));
  return {
    path: join(folder, path),
    env: { ...process.env, LD_LIBRARY_PATH: libraries.join(":") },
  };
}
