// Makes the folder of native libraries: libmlx from MLX's wheel, libmlxc built from mlx-c's source, and
// OpenBLAS linked in front of the BLAS that the wheel carries (ffi/blas.c).
import { existsSync } from "node:fs";
import { copyFile, mkdir, readdir, rename, rm } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { basename, dirname, join } from "node:path";
import { libraryIn, target } from "../../ffi/native.ts";
import * as pins from "../../ffi/pins.ts";
import { fetchCrate, fetchWheel, unpack } from "./fetch.ts";
import { progress, requireTools, runQuietly, writableDirectory } from "./run.ts";

export async function makeNative(directory: string): Promise<void> {
  requireTools(["python3", "cmake", "c++"]);
  const parent = await writableDirectory(dirname(directory));
  await removeAbandoned(parent);
  console.error(`mlx-serve: making MLX ${pins.MLX_VERSION} for ${target()} (about a minute, once)`);
  const wheel = await fetchWheel(pins.mlx[target()]);
  // A CUDA libmlx has the interface of the CPU's, whose headers need no CUDA to compile against.
  const headers =
    target() === "linux-x64-cuda" ? await fetchWheel(pins.mlx["linux-x64-cpu"]) : wheel;
  const blasPin = pins.openBlas[`${process.platform}-${process.arch}`];
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
  const shim = blas ? await makeBlas(blas, work) : undefined;
  await buildMlxC(source, linked, join(work, "build"), shim?.linkerFlags ?? "");

  // The wheel's own layout, for libmlx finds the libraries it brings along by their place.
  const lib = dirname(libraryIn(building));
  const include = join(dirname(lib), "include");
  await mkdir(join(include, "mlx", "c"), { recursive: true });
  await rename(join(unpacked, "mlx", "lib"), lib);
  for (const name of await readdir(unpacked)) {
    if (name.endsWith(".libs")) await rename(join(unpacked, name), join(building, name));
  }
  await copyFile(join(work, "build", basename(libraryIn(building))), libraryIn(building));
  if (shim) await rename(shim.library, join(lib, basename(shim.library)));
  // CUDA kernels include these when MLX compiles them.
  for (const name of ["cccl", "cute", "cutlass"]) {
    const folder = join(unpacked, "mlx", "include", name);
    if (existsSync(folder)) await rename(folder, join(include, name));
  }
  for (const name of await readdir(join(source, "mlx", "c"))) {
    const header = join(source, "mlx", "c", name);
    if (name.endsWith(".h")) await copyFile(header, join(include, "mlx", "c", name));
  }
  await rm(work, { recursive: true });
  // Another set-up may have come first; its folder is as good.
  if (existsSync(directory)) await rm(building, { recursive: true });
  else await rename(building, directory);
}

/** OpenBLAS, and what binds libmlx's calls to it when libmlxc is linked. */
async function makeBlas(wheel: string, work: string) {
  await unpack("zipfile", wheel, join(work, "blas"));
  const library = join(work, "blas", "scipy_openblas32", "lib", "libscipy_openblas.so");
  const source = join(import.meta.dir, "..", "..", "ffi", "blas.c");
  const object = join(work, "blas.o");
  const compile = ["c++", "-x", "c", "-O2", "-fPIC", "-c", source, "-o", object];
  await runQuietly(compile, "the BLAS shim did not compile");
  return { library, linkerFlags: `${object} -L${dirname(library)} -lscipy_openblas` };
}

async function buildMlxC(source: string, mlx: string, build: string, linkerFlags: string) {
  const origin = process.platform === "darwin" ? "@loader_path" : "$ORIGIN";
  const configure = ["cmake", "-S", source, "-B", build, ...pins.cmakeFlags].concat([
    `-DMLX_DIR=${join(mlx, "mlx", "share", "cmake", "MLX")}`,
    `-DCMAKE_INSTALL_RPATH=${origin}`,
    `-DCMAKE_SHARED_LINKER_FLAGS=${linkerFlags}`,
  ]);
  await runQuietly(configure, "cmake could not configure mlx-c (it needs a C++20 compiler)");
  const show = progress("building libmlxc");
  const compile = ["cmake", "--build", build, "--parallel", String(availableParallelism())];
  await runQuietly(compile, "mlx-c did not compile (it needs a C++20 compiler)", (line) => {
    const percent = /^\[ *(\d+)%\]/.exec(line)?.[1];
    if (percent) show(Number(percent));
  });
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
