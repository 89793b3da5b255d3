// Builds the folder of native libraries: libmlx from MLX's wheel, and libmlxc from mlx-c's source with our
// operations for CPUs (ffi/cpu) and CUDA (ffi/cuda), and with OpenBLAS linked ahead of the wheel's BLAS
// (ffi/blas.c). Linux can cross-build for the other systems.
import { existsSync } from "node:fs";
import { copyFile, mkdir, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { basename, dirname, join } from "node:path";
import { libraryIn, nativeDirectory, target } from "../../ffi/native.ts";
import * as pins from "../../ffi/pins.ts";
import { type Compiler, findCompiler } from "./compiler.ts";
import { fetchCrate, fetchWheel, unpack } from "./fetch.ts";
import {
  progress,
  requireTools,
  runQuietly,
  SetupError,
  settled,
  writableDirectory,
} from "./run.ts";

export async function makeNative(name: pins.Target = target()): Promise<void> {
  const directory = nativeDirectory(process.env, name);
  const [system, processor] = name.split("-");
  requireTools(["python3"]);
  const parent = await writableDirectory(dirname(directory));
  await removeAbandoned(parent);
  const building = join(parent, `${ABANDONED}${process.pid}`);
  const work = join(building, "work");
  await mkdir(work, { recursive: true });
  const compiler = await findCompiler(`${system}-${processor}`, work);
  console.error(`mlx-serve: building MLX ${pins.MLX_VERSION} for ${name} (about a minute, once)`);
  const library = libraryIn(building, system);
  const built = join(work, "build", basename(library));
  await mkdir(dirname(built));
  const unpacked = join(work, "wheel");
  // libmlx for CUDA has the same interface, but its headers do not compile without CUDA.
  const isCuda = name === "linux-x64-cuda";
  const linked = isCuda ? join(work, "headers") : unpacked;
  const source = join(work, `${pins.mlxC.package}-${pins.mlxC.version}`, "src", "mlx-c");
  const blasPin = pins.openBlas[`${system}-${processor}`];
  const openBlas = blasPin && join(work, "blas", "scipy_openblas32", "lib", "libscipy_openblas.so");
  const fetched = settled([
    fetchCrate(pins.mlxC).then((crate) => unpack("tarfile", crate, work)),
    fetchWheel(pins.mlx[name]).then((wheel) => unpack("zipfile", wheel, unpacked)),
    isCuda &&
      fetchWheel(pins.mlx["linux-x64-cpu"]).then((wheel) => unpack("zipfile", wheel, linked)),
    blasPin && fetchWheel(blasPin).then((wheel) => unpack("zipfile", wheel, join(work, "blas"))),
  ]);
  const mlx = join(linked, "mlx");
  const ingredients = { target: name, compiler, mlxC: source, mlx, openBlas, fetched };
  await settled([fetched, buildLibrary(ingredients, built)]);
  await keepLicenses({ unpacked, mlxC: source, openBlas }, join(building, "licenses"));

  // Keeps the wheel's layout: libmlx finds its libraries by relative path.
  const lib = dirname(library);
  const include = join(dirname(lib), "include");
  await mkdir(join(include, "mlx", "c"), { recursive: true });
  await rename(join(unpacked, "mlx", "lib"), lib);
  for (const name of await readdir(unpacked)) {
    if (name.endsWith(".libs")) await rename(join(unpacked, name), join(building, name));
  }
  await copyFile(built, library);
  if (openBlas) await rename(openBlas, join(lib, basename(openBlas)));
  // CUDA kernels include these when MLX compiles them.
  for (const name of ["cccl", "cute", "cutlass"]) {
    const folder = join(unpacked, "mlx", "include", name);
    if (existsSync(folder)) await rename(folder, join(include, name));
  }
  for (const name of await readdir(join(source, "mlx", "c"))) {
    const header = join(source, "mlx", "c", name);
    if (name.endsWith(".h")) await copyFile(header, join(include, "mlx", "c", name));
  }
  await copyFile(join(ownFolder, "cpu", "ops.h"), join(include, "mlx", "c", "mlx-serve.h"));
  for (const name of hasCuda(system) ? ["compiled", "recording"] : []) {
    const header = join(include, "mlx", "c", `mlx-serve-${name}.h`);
    await copyFile(join(ownFolder, "cuda", `${name}.h`), header);
  }
  if (nativeDirectory(process.env, name) !== directory) {
    await rm(building, { recursive: true });
    throw new SetupError("ffi/ has changed while it was compiled; run the command again");
  }
  await rm(work, { recursive: true });
  // Another process may have finished first; its folder is the same.
  if (existsSync(directory)) await rm(building, { recursive: true });
  else await rename(building, directory);
}

const ownFolder = join(import.meta.dir, "..", "..", "ffi");

/**
 * Sources that are compiled as one unit, because parsing MLX's headers takes most of the time.
 */
type Unit = {
  name: string;
  /** A function waits for what is fetched; the kernels compile meanwhile. */
  sources: readonly string[] | (() => Promise<readonly string[]>);
  flags: readonly string[];
};

type Ingredients = {
  target: pins.Target;
  compiler: Compiler;
  /** The folder of mlx-c. */
  mlxC: string;
  /** The folder of a wheel with libmlx and its headers. */
  mlx: string;
  /** A Mac's libmlx uses the system's BLAS. */
  openBlas: string | undefined;
  /** Resolves when all of these are in place. */
  fetched: Promise<unknown>;
};

/** Compiles mlx-c and our own sources, one unit per core at a time, and links them into `library`. */
async function buildLibrary(from: Ingredients, library: string): Promise<void> {
  const { compiler, openBlas } = from;
  const units = [...ownUnits(from), ...mlxCUnits(from)];
  const includes = [`-I${from.mlxC}`, `-I${join(from.mlx, "include")}`];
  const folder = dirname(library);
  const objects = units.map(({ name }) => join(folder, `${name}.o`));
  const show = progress("building libmlxc");
  const waiting = [...units];
  let done = 0;
  let isFetched = false;
  const compileInTurn = async () => {
    for (let unit = waiting.shift(); unit; unit = waiting.shift()) {
      const { name, flags, sources: given } = unit;
      const sources = typeof given === "function" ? await given() : given;
      isFetched ||= given !== sources;
      const command = sources[0]!.endsWith(".c") ? compiler.c : compiler.cxx;
      const source = sources.length === 1 ? sources[0]! : join(folder, `${name}.cpp`);
      if (sources.length > 1) await writeFile(source, sources.map(includeOf).join(""));
      await runQuietly(
        [...command, ...flags, ...includes, "-c", source, "-o", join(folder, `${name}.o`)],
        `${name} did not compile (it needs a C++20 compiler)`,
      );
      done += 1;
      if (isFetched) show(Math.floor((done / units.length) * 100));
    }
  };
  const compilers = Array.from({ length: availableParallelism() }, compileInTurn);
  // After a failure nothing more begins.
  for (const each of [from.fetched, ...compilers]) each.catch(() => waiting.splice(0));
  await settled(compilers);

  const name = basename(library);
  const mac = from.target.startsWith("darwin");
  const placed = mac
    ? ["-Wl,-rpath,@loader_path", `-Wl,-install_name,@rpath/${name}`]
    : ["-Wl,-rpath,$ORIGIN", `-Wl,-soname,${name}`];
  // The loader searches in this order: OpenBLAS before the BLAS of libmlx.
  const linked = openBlas ? [`-L${dirname(openBlas)}`, "-lscipy_openblas"] : [];
  linked.push(join(from.mlx, "lib", mac ? "libmlx.dylib" : "libmlx.so"), ...compiler.runtime);
  const link = [...compiler.link, ...placed, ...objects, ...linked, "-o", library];
  await runQuietly(link, `${name} could not be linked`);
}

function includeOf(source: string): string {
  return `#include ${JSON.stringify(source)}\n`;
}

/** Split in halves, for two cores. */
function mlxCUnits({ mlxC, fetched }: Ingredients): Unit[] {
  const folder = join(mlxC, "mlx", "c");
  const flags = [...pins.mlxCFlags, "-include", join(ownFolder, "mlx-c.h")];
  const isNeeded = (name: string) =>
    name.endsWith(".cpp") && !pins.mlxCUnused.some((each) => name === `${each}.cpp`);
  return [0, 1].map((half) => ({
    name: `mlx-c-${half}`,
    sources: async () => {
      await fetched;
      const names = (await readdir(folder)).filter(isNeeded).sort();
      return names.filter((_, i) => i % 2 === half).map((name) => join(folder, name));
    },
    flags,
  }));
}

/** ffi/cpu, ffi/cuda and ffi/blas.c; the kernels once for each kind of processor, the slowest to compile first. */
function ownUnits({ target, openBlas, fetched }: Ingredients): Unit[] {
  const [system, processor] = target.split("-");
  const paths = (sources: readonly string[]) => sources.map((source) => join(ownFolder, source));
  const variants = Object.entries(pins.kernelVariants[processor as "x64" | "arm64"]).reverse();
  const units: Unit[] = variants.map(([variant, flags]) => ({
    name: `kernels-${variant}`,
    sources: paths(["cpu/kernels.cpp"]),
    flags: [...pins.ownFlags, `-DVARIANT=${variant}`, ...flags],
  }));
  const addUnit = (name: string, sources: readonly string[], ...flags: readonly string[]) =>
    units.push({
      name,
      sources: () => fetched.then(() => paths(sources)),
      flags: [...pins.ownFlags, ...flags],
    });
  const operations = ["attention", "expert-product", "latent", "packed-product", "recurrence"];
  operations.push("rows", "sequence", "pool", "shared-group", "choice");
  if (openBlas) operations.push("product");
  const cpu = operations.map((name) => `cpu/${name}.cpp`);
  addUnit("cpu", cpu, ...(openBlas ? ["-DWITH_BLAS"] : []));
  if (openBlas) addUnit("blas", ["blas.c"]);
  const cuda = ["compiled", "copies", "driver", "memory", "recording"];
  if (hasCuda(system))
    addUnit(
      "cuda",
      cuda.map((name) => `cuda/${name}.cpp`),
    );
  return units;
}

type Unpacked = { unpacked: string; mlxC: string; openBlas: string | undefined };

/** The licenses of the libraries' components, for `mlx-serve version --licenses`. */
async function keepLicenses({ unpacked, mlxC, openBlas }: Unpacked, folder: string): Promise<void> {
  const include = join(unpacked, "mlx", "include");
  const copies: Record<string, string | undefined> = {
    "mlx.txt": await licenseOfWheel(unpacked),
    "mlx-c.txt": join(mlxC, "LICENSE"),
    "openblas.txt": openBlas && (await licenseOfWheel(join(dirname(openBlas), "..", ".."))),
    "metal-cpp.txt": join(include, "metal_cpp", "LICENSE.txt"),
  };
  await mkdir(folder);
  for (const [name, file] of Object.entries(copies)) {
    if (file && existsSync(file)) await copyFile(file, join(folder, name));
  }
  // These are headers, with the license in their first comment.
  const headers = {
    "pocketfft.txt": join(include, "mlx", "3rdparty", "pocketfft.h"),
    "cutlass.txt": join(include, "cutlass", "cutlass.h"),
  };
  for (const [name, file] of Object.entries(headers)) {
    if (!existsSync(file)) continue;
    await writeFile(join(folder, name), firstComment(await readFile(file, "utf8")));
  }
}

async function licenseOfWheel(folder: string): Promise<string | undefined> {
  const [file] = await Array.fromAsync(new Bun.Glob("*.dist-info/licenses/*").scan(folder));
  return file && join(folder, file);
}

function firstComment(source: string): string {
  const [, comment = ""] = /\/\*+([\s\S]*?)\*+\//.exec(source) ?? [];
  return `${comment.replace(/^ ?\* ?/gm, "").trim()}\n`;
}

/** Every libmlxc for Linux can record CUDA graphs: it loads CUDA's driver on demand. */
function hasCuda(system: string | undefined): boolean {
  return system === "linux";
}

const ABANDONED = ".building-";

/** Removes what interrupted runs left behind. */
async function removeAbandoned(parent: string): Promise<void> {
  for (const name of await readdir(parent)) {
    if (name.startsWith(ABANDONED) && !alive(Number(name.slice(ABANDONED.length)))) {
      await rm(join(parent, name), { recursive: true });
    }
  }
}

function alive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
