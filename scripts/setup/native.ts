// Makes the folder of native libraries: libmlx from MLX's wheel, libmlxc built from mlx-c's source, and
// OpenBLAS linked in front of the BLAS that the wheel carries (ffi/blas.c), and the operations of our own
// for a CPU (ffi/cpu) and for CUDA (ffi/cuda). On Linux it can be made for the other systems too.
import { existsSync } from "node:fs";
import { chmod, copyFile, mkdir, readdir, rename, rm } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { basename, dirname, join } from "node:path";
import { libraryIn, target } from "../../ffi/native.ts";
import * as pins from "../../ffi/pins.ts";
import { fetchCrate, fetchWheel, unpack } from "./fetch.ts";
import { progress, requireTools, runQuietly, SetupError, writableDirectory } from "./run.ts";

export async function makeNative(directory: string, name: pins.Target = target()): Promise<void> {
  const [system, processor] = name.split("-");
  const compiler = findCompiler(`${system}-${processor}`);
  const parent = await writableDirectory(dirname(directory));
  await removeAbandoned(parent);
  console.error(`mlx-serve: making MLX ${pins.MLX_VERSION} for ${name} (about a minute, once)`);
  const wheel = await fetchWheel(pins.mlx[name]);
  // A CUDA libmlx has the interface of the CPU's, whose headers need no CUDA to compile against.
  const headers = name === "linux-x64-cuda" ? await fetchWheel(pins.mlx["linux-x64-cpu"]) : wheel;
  const blasPin = pins.openBlas[`${system}-${processor}`];
  const blas = blasPin ? await fetchWheel(blasPin) : undefined;
  const crate = await fetchCrate(pins.mlxC);

  const building = join(parent, `${ABANDONED}${process.pid}`);
  const work = join(building, "work");
  const unpacked = join(work, "wheel");
  await mkdir(work, { recursive: true });
  await unpack("zipfile", wheel, unpacked);
  await unpack("tarfile", crate, work);
  const source = join(work, `${pins.mlxC.package}-${pins.mlxC.version}`, "src", "mlx-c");
  const linked = headers === wheel ? unpacked : join(work, "headers");
  if (linked !== unpacked) await unpack("zipfile", headers, linked);
  const openBlas = blas && (await unpackBlas(blas, work));
  const library = libraryIn(building, system);
  const built = join(work, "build", basename(library));
  await mkdir(dirname(built));
  const command = compiler === "zig" ? await zigCommand(work) : [compiler];
  // Every libmlxc for Linux has it: the CUDA driver is looked for when it is needed.
  const withCuda = system === "linux";
  const own = await compileOwn({
    compile: [...command, ...(compiler === "zig" ? ["c++", ...pins.zigFlags] : ["-std=c++20"])],
    variants: pins.kernelVariants[processor as "x64" | "arm64"],
    includes: [`-I${source}`, `-I${join(linked, "mlx", "include")}`],
    withBlas: openBlas !== undefined,
    withCuda,
    build: dirname(built),
  });
  if (compiler === "zig") await buildWithZig(command, source, join(linked, "mlx"), own, built);
  else await buildMlxC(source, linked, dirname(built), own, openBlas, compiler);

  // The wheel's own layout, for libmlx finds the libraries it brings along by their place.
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
  for (const name of withCuda ? ["compiled", "recording"] : []) {
    const header = join(include, "mlx", "c", `mlx-serve-${name}.h`);
    await copyFile(join(ownFolder, "cuda", `${name}.h`), header);
  }
  await rm(work, { recursive: true });
  // Another set-up may have come first; its folder is as good.
  if (existsSync(directory)) await rm(building, { recursive: true });
  else await rename(building, directory);
}

type Compiler = "c++" | "aarch64-linux-gnu-g++" | "zig";

/** The compiler that makes libraries for a system and processor, here. */
function findCompiler(wanted: string): Compiler {
  const here = `${process.platform}-${process.arch}`;
  if (wanted === here) {
    requireTools(["python3", "cmake", "c++"]);
    return "c++";
  }
  if (here === "linux-x64" && wanted === "linux-arm64") {
    requireTools(["python3", "cmake"]);
    if (Bun.which("aarch64-linux-gnu-g++")) return "aarch64-linux-gnu-g++";
    throw new SetupError("aarch64-linux-gnu-g++ is missing: install g++-aarch64-linux-gnu");
  }
  if (here === "linux-x64" && wanted === "darwin-arm64") {
    requireTools(["python3"]);
    return "zig";
  }
  throw new SetupError(`libraries for ${wanted} cannot be made on ${here}`);
}

async function unpackBlas(wheel: string, work: string): Promise<string> {
  await unpack("zipfile", wheel, join(work, "blas"));
  return join(work, "blas", "scipy_openblas32", "lib", "libscipy_openblas.so");
}

const ownFolder = join(import.meta.dir, "..", "..", "ffi");

type OwnParts = {
  compile: readonly string[];
  variants: Record<string, readonly string[]>;
  includes: readonly string[];
  /** A Mac's libmlx uses the system's BLAS. */
  withBlas: boolean;
  withCuda: boolean;
  build: string;
};

/** The objects of our own sources. */
async function compileOwn(own: OwnParts) {
  const { compile, variants, includes, build } = own;
  const parts: [name: string, flags: readonly string[]][] = [
    ["cpu/ops.cpp", own.withBlas ? ["-DWITH_BLAS", ...includes] : includes],
    ["cpu/pool.cpp", []],
    ["cpu/choice.cpp", []],
    ...Object.entries(variants).map(([variant, flags]): [string, string[]] => [
      "cpu/kernels.cpp",
      [`-DVARIANT=${variant}`, ...flags],
    ]),
  ];
  if (own.withBlas) parts.push(["cpu/product.cpp", []], ["blas.c", []]);
  if (own.withCuda) {
    parts.push(
      ["cuda/compiled.cpp", includes],
      ["cuda/driver.cpp", []],
      ["cuda/memory.cpp", includes],
      ["cuda/recording.cpp", includes],
    );
  }
  return Promise.all(
    parts.map(async ([name, flags], i) => {
      const object = join(build, `own-${i}.o`);
      // A C++ compiler takes a C file for C++ unless it is told; and the standard is not C's then.
      const command = name.endsWith(".c") ? [compile[0]!, "-x", "c"] : compile;
      const files = ["-c", join(ownFolder, name), "-o", object];
      await runQuietly(
        [...command, ...pins.ownFlags, ...flags, ...files],
        `ffi/${name} did not compile (it needs a C++20 compiler)`,
      );
      return object;
    }),
  );
}

async function buildMlxC(
  source: string,
  mlx: string,
  build: string,
  own: readonly string[],
  openBlas: string | undefined,
  compiler: Compiler,
) {
  const origin = process.platform === "darwin" ? "@loader_path" : "$ORIGIN";
  const blasFlags = openBlas ? [`-L${dirname(openBlas)}`, "-lscipy_openblas"] : [];
  const linkerFlags = [...own, ...blasFlags].join(" ");
  const configure = ["cmake", "-S", source, "-B", build, ...pins.cmakeFlags].concat([
    `-DMLX_DIR=${join(mlx, "mlx", "share", "cmake", "MLX")}`,
    `-DCMAKE_INSTALL_RPATH=${origin}`,
    `-DCMAKE_SHARED_LINKER_FLAGS=${linkerFlags}`,
    ...(compiler === "c++" ? [] : crossFlags),
  ]);
  await runQuietly(configure, "cmake could not configure mlx-c (it needs a C++20 compiler)");
  const show = progress("building libmlxc");
  const compile = ["cmake", "--build", build, "--parallel", String(availableParallelism())];
  await runQuietly(compile, "mlx-c did not compile (it needs a C++20 compiler)", (line) => {
    const percent = /^\[ *(\d+)%\]/.exec(line)?.[1];
    if (percent) show(Number(percent));
  });
}

const crossFlags = [
  "-DCMAKE_SYSTEM_NAME=Linux",
  "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
  "-DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc",
  "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++",
];

/** zig, unpacked, with its caches beside it. */
async function zigCommand(work: string): Promise<string[]> {
  const folder = join(work, "zig");
  await unpack("zipfile", await fetchWheel(pins.zig), folder);
  const program = join(folder, "ziglang", "zig");
  await chmod(program, 0o755);
  const caches = ["ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"].map((name) => `${name}=${folder}`);
  return ["env", ...caches, program];
}

/** libmlxc for macOS. cmake would ask for Apple's tools; mlx-c is no more than a folder of C++ files. */
async function buildWithZig(
  zig: readonly string[],
  source: string,
  mlx: string,
  own: readonly string[],
  library: string,
): Promise<void> {
  const build = dirname(library);
  const folder = join(source, "mlx", "c");
  const sources = (await readdir(folder)).filter((name) => name.endsWith(".cpp"));
  const includes = [`-I${source}`, `-I${join(mlx, "include")}`];
  const show = progress("building libmlxc");
  const waiting = [...sources];
  const objects: string[] = [];
  const compileInTurn = async () => {
    for (let name = waiting.pop(); name; name = waiting.pop()) {
      const object = join(build, `${name}.o`);
      const files = ["-c", join(folder, name), "-o", object];
      const compile = [...zig, "c++", ...pins.zigFlags, ...includes, ...files];
      await runQuietly(compile, "mlx-c did not compile for macOS");
      show(Math.floor((objects.push(object) / sources.length) * 100));
    }
  };
  await Promise.all(Array.from({ length: availableParallelism() }, compileInTurn));

  // libc++ must be the system's, as it is libmlx's: exceptions and strings pass between the two. Its
  // symbols are looked up at run time, for there is no libc++ of macOS here to link with.
  const link = ["-shared", "-Wl,-undefined,dynamic_lookup", "-Wl,-rpath,@loader_path"].concat([
    `-Wl,-install_name,@rpath/${basename(library)}`,
    ...objects.sort(),
    ...own,
    join(mlx, "lib", "libmlx.dylib"),
    "-o",
    library,
  ]);
  const command = [...zig, "cc", "-target", pins.zigTarget, ...link];
  await runQuietly(command, "libmlxc for macOS could not be linked");
}

const ABANDONED = ".building-";

/** What runs that were interrupted have left. */
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
