// Finds the native libraries. In order: a libmlxc named by the user, those inside the executable, those that set-up
// built, Homebrew's.
import { existsSync, readFileSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import { embedded } from "./embedded.ts";
import { extract } from "./extract.ts";
import * as pins from "./pins.ts";

export type Backend = "cpu" | "metal" | "cuda";

type Environment = Readonly<Record<string, string | undefined>>;

/** The target that an executable was built for; scripts/build.ts defines it. */
declare const EXECUTABLE_TARGET: pins.Target;
/** Target of this executable; undefined in a checkout. */
export const carried = typeof EXECUTABLE_TARGET === "string" ? EXECUTABLE_TARGET : undefined;

/** Returns the cache folder, which every run shares: `MLX_SERVE_CACHE`, or the user's cache folder. */
export function cacheDirectory(env: Environment = process.env): string {
  return env.MLX_SERVE_CACHE ?? join(env.XDG_CACHE_HOME ?? join(homedir(), ".cache"), "mlx-serve");
}

export function defaultModelPath(env: Environment = process.env): string {
  return join(cacheDirectory(env), "models", pins.MODEL_FILE);
}

/** Returns the backend: `MLX_SERVE_BACKEND`, or else the executable's, or else this system's default. */
export function backend(env: Environment = process.env): Backend {
  const own = carried?.split("-")[2] ?? (process.platform === "darwin" ? "metal" : "cpu");
  const wanted = env.MLX_SERVE_BACKEND ?? own;
  if (wanted !== "cpu" && wanted !== "metal" && wanted !== "cuda") {
    throw new Error(`MLX_SERVE_BACKEND must be cpu, metal or cuda, not ${wanted}`);
  }
  // Allows "cpu" in every executable, because every libmlx supports the CPU.
  if (carried && wanted !== own && wanted !== "cpu") {
    throw new Error(`MLX_SERVE_BACKEND is ${wanted}, and this executable is for ${carried}`);
  }
  return wanted;
}

/** Returns the system, processor and backend that the libraries are built for. */
export function target(env: Environment = process.env): pins.Target {
  // Always "metal" on macOS, because libmlx for macOS supports both the CPU and Metal.
  const kind = process.platform === "darwin" ? "metal" : backend(env);
  const name = `${process.platform}-${process.arch}-${kind}`;
  if (name in pins.mlx) return name as pins.Target;
  throw new Error(`MLX has no library for ${name}; there are ${Object.keys(pins.mlx).join(", ")}`);
}

/** Lists the sources and headers that are compiled into libmlxc besides mlx-c. */
export function ownSources(): string[] {
  return [...new Bun.Glob("**/*.{c,cpp,h}").scanSync(import.meta.dir)].sort();
}

/** Returns the folder where set-up builds a target's libraries, named after a hash of the build's inputs. */
export function nativeDirectory(
  env: Environment = process.env,
  name: pins.Target = target(env),
): string {
  const recipe = JSON.stringify([
    pins.mlx[name],
    pins.mlxC,
    pins.openBlas,
    pins.mlxCFlags,
    pins.mlxCUnused,
    pins.ownFlags,
    pins.kernelVariants,
    ...ownSources().map((path) => readFileSync(join(import.meta.dir, path), "utf8")),
    ...(name === "darwin-arm64-metal" ? [pins.zig, pins.macFlags] : []),
  ]);
  const key = new Bun.CryptoHasher("sha256").update(recipe).digest("hex").slice(0, 12);
  return join(cacheDirectory(env), "native", `${name}-${key}`);
}

/** Returns libmlxc's path. All libraries are in one folder, as in MLX's wheel. */
export function libraryIn(directory: string, system: string = process.platform): string {
  return join(directory, "mlx", "lib", libraryName(system));
}

function libraryName(system: string): string {
  return system === "darwin" ? "libmlxc.dylib" : "libmlxc.so";
}

/** Returns the folder of mlx-c's headers, next to a library that set-up built; undefined for other libraries. */
export function headersOf(library: string): string | undefined {
  const beside = join(dirname(dirname(library)), "include", "mlx", "c");
  return existsSync(beside) ? beside : undefined;
}

export function homebrewLibrary(env: Environment = process.env): string | undefined {
  if (process.platform !== "darwin") return undefined;
  const library = join(env.HOMEBREW_PREFIX ?? "/opt/homebrew", "lib", libraryName("darwin"));
  return existsSync(library) ? library : undefined;
}

/** Returns the path of the libmlxc to open. Throws if there is none. */
export function findLibrary(env: Environment = process.env): string {
  const named = env.MLX_SERVE_MLXC;
  if (named) {
    if (existsSync(named)) return named;
    throw new Error(`MLX_SERVE_MLXC names ${named}, and there is no such file`);
  }
  if (embedded.length > 0) return libraryIn(extract(embedded, cacheDirectory(env)));
  const made = libraryIn(nativeDirectory(env));
  if (existsSync(made)) return made;
  const homebrew = homebrewLibrary(env);
  if (homebrew) return homebrew;
  const wanted = env.MLX_SERVE_BACKEND;
  const start = wanted ? `npm start -- --backend ${wanted}` : "npm start";
  throw new Error(`libmlxc was not found: run \`${start}\` once, or name one in MLX_SERVE_MLXC`);
}

/** Returns the arguments of the engine's Worker. */
export function engineSetup(env: Environment = process.env) {
  return {
    library: findLibrary(env),
    device: backend(env) === "cpu" ? ("cpu" as const) : ("gpu" as const),
    trace: env.MLX_SERVE_FFI_TRACE === "1",
  };
}
