// Downloads pinned files with the standard clients of their registries and verifies their SHA-256. Files are kept, so
// that a rebuild needs no network. The folder in MLX_SERVE_DOWNLOADS is searched first, for machines without a network.
import { existsSync } from "node:fs";
import { copyFile, mkdir, mkdtemp, readdir, rename, rm } from "node:fs/promises";
import { homedir } from "node:os";
import { basename, join } from "node:path";
import { cacheDirectory } from "../../ffi/native.ts";
import { type Crate, LIBSTDCXX_VERSION, type Wheel } from "../../ffi/pins.ts";
import {
  installCommand,
  requireCargo,
  requireTools,
  runQuietly,
  SetupError,
  writableDirectory,
} from "./run.ts";

export function fetchWheel(pin: Wheel): Promise<string> {
  return fetchPinned(pin, async (staging) => {
    requireTools(["python3", "pip"]);
    const options = ["--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--no-input"];
    if (pin.platform) options.push("--platform", pin.platform);
    const wheel = `${pin.package}==${pin.version}`;
    await runQuietly(
      ["python3", "-m", "pip", "download", "--only-binary=:all:", ...options].concat([
        "--dest",
        staging,
        wheel,
      ]),
      `pip could not fetch ${pin.package} ${pin.version}; run the command again`,
    );
  });
}

export function fetchCrate(pin: Crate): Promise<string> {
  return fetchPinned(pin, async (staging) => {
    requireCargo();
    const name = `${pin.package}@${pin.version}`;
    console.error(`mlx-serve: fetching ${name} with cargo`);
    // `cargo info` downloads the crate without dependencies.
    const failure = `cargo could not fetch ${name}; run the command again`;
    await runQuietly(["cargo", "info", name], failure);
    const cache = join(process.env.CARGO_HOME ?? join(homedir(), ".cargo"), "registry", "cache");
    const registries = existsSync(cache) ? await readdir(cache) : [];
    const file = registries.map((registry) => join(cache, registry, pin.file)).find(existsSync);
    if (!file) throw new SetupError(`cargo left no ${pin.file} in ${cache}`);
    await copyFile(file, join(staging, pin.file));
    // Remove a damaged file, so that cargo downloads it again.
    if ((await sha256(file)) !== pin.sha256) await rm(file);
  });
}

/** The headers of libstdc++, unpacked into `folder` from a package of the distribution. Its version is the
 * distribution's, so it has no pin: apt checks it against the distribution's signed index. */
export async function fetchCxxHeaders(folder: string): Promise<string> {
  const name = `libstdc++-${LIBSTDCXX_VERSION}-dev`;
  const failure =
    `${name} could not be fetched with apt-get; run the command again, ` +
    `or install a C++20 compiler with ${installCommand(["c++"])}`;
  await withApt(folder, failure, ["download", name]);
  await unpackDebs(folder, folder, failure);
  return folder;
}

/** Unpacks a program of the distribution, with its missing dependencies, into `folder`. */
export async function fetchProgram(name: string, folder: string): Promise<void> {
  const failure = `${name} could not be fetched with apt-get: run the command again, or install it`;
  const state = await withApt(folder, failure, [
    ...["install", "--download-only", "--no-install-recommends", "--yes", name],
  ]);
  await unpackDebs(join(state, "archives"), folder, failure);
}

/** Runs apt without root, with its state in `folder`: the system's state may be outdated or empty. */
async function withApt(folder: string, failure: string, args: readonly string[]): Promise<string> {
  const state = join(folder, "apt");
  for (const path of ["lists", "archives"]) {
    await mkdir(join(state, path, "partial"), { recursive: true });
  }
  const settings = {
    "Dir::State": state,
    "Dir::State::status": "/var/lib/dpkg/status",
    "Dir::Cache": state,
    "APT::Sandbox::User": "root",
    "Debug::NoLocking": "true",
  };
  const options = Object.entries(settings).flatMap(([key, value]) => ["-o", `${key}=${value}`]);
  const apt = ["env", "-C", folder, "apt-get", "-qq", ...options];
  await runQuietly([...apt, "update"], failure);
  await runQuietly([...apt, ...args], failure);
  return state;
}

async function unpackDebs(from: string, to: string, failure: string): Promise<void> {
  const files = (await readdir(from)).filter((path) => path.endsWith(".deb"));
  if (files.length === 0) throw new SetupError(failure);
  for (const file of files) await runQuietly(["dpkg-deb", "-x", join(from, file), to], failure);
}

/** Unpacks with Python, which supports both kinds of archive and is already required for pip. */
export async function unpack(
  kind: "zipfile" | "tarfile",
  archive: string,
  to: string,
): Promise<void> {
  const command = ["python3", "-m", kind, "-e", archive, to];
  await runQuietly(command, `${basename(archive)} could not be unpacked: is the disk full?`);
}

/** `download` writes the file into the given folder. The file is kept if its hash matches the pin. */
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
