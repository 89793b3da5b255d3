// The compilers that build libmlxc: the machine's own, a cross compiler, or zig, which comes from PyPI.
import { existsSync } from "node:fs";
import { chmod, mkdir } from "node:fs/promises";
import { join } from "node:path";
import * as pins from "../../ffi/pins.ts";
import { fetchCxxHeaders, fetchWheel, unpack } from "./fetch.ts";
import { requireTools, SetupError, succeeds } from "./run.ts";

/** Command lines without flags and files. */
export type Compiler = {
  cxx: readonly string[];
  c: readonly string[];
  link: readonly string[];
  /** Libraries appended to every link. */
  runtime: readonly string[];
};

/** The compiler for `wanted`, a system and processor; zig is unpacked to `work`. */
export async function findCompiler(wanted: string, work: string): Promise<Compiler> {
  const here = `${process.platform}-${process.arch}`;
  if (wanted === here) {
    const found = findCxx();
    if (found) return gnuLike(found);
    if (pins.zig[here] && Bun.which("apt-get")) return zigForLinux(here, work);
    requireTools(["c++"]);
    throw new SetupError("the C++ compiler does not compile C++20: install a newer one");
  }
  if (here === "linux-x64" && wanted === "linux-arm64") {
    const cross = "aarch64-linux-gnu-g++";
    if (Bun.which(cross)) return gnuLike(cross);
    throw new SetupError(`${cross} is missing: install g++-aarch64-linux-gnu`);
  }
  if (here === "linux-x64" && wanted === "darwin-arm64") return zigForMac(here, work);
  throw new SetupError(`libraries for ${wanted} cannot be built on ${here}`);
}

/** The first compiler on the machine that accepts C++20. `CXX` names another one. */
function findCxx(): string | undefined {
  const named = process.env.CXX;
  for (const name of named ? [named] : ["c++", "g++", "clang++"]) {
    if (Bun.which(name) && acceptsCxx20(name)) return name;
  }
  if (named) throw new SetupError(`CXX is ${named}, which does not compile C++20`);
  return undefined;
}

/** A compiler can be older than the standard, or lack the library's headers. */
function acceptsCxx20(name: string): boolean {
  return succeeds(name, "-std=c++20", "-fsyntax-only", join(import.meta.dir, "cxx20.cpp"));
}

function gnuLike(command: string): Compiler {
  return {
    cxx: [command, "-std=c++20"],
    // A C++ compiler treats C files as C++ unless told otherwise.
    c: [command, "-x", "c"],
    link: [command, "-shared"],
    runtime: [],
  };
}

/** zig brings a clang, a linker and glibc, but its C++ library is libc++. libmlx is built with GCC's
 * libstdc++, and strings, functions and exceptions pass between the two libraries, so libmlxc is compiled
 * with the headers of libstdc++ and linked with the one of this machine. */
async function zigForLinux(here: string, work: string): Promise<Compiler> {
  console.error("mlx-serve: no C++20 compiler found; building with zig and libstdc++'s headers");
  const headers = await fetchCxxHeaders(join(work, "headers-of-libstdc++"));
  const zig = await unpackZig(here, work);
  const processor = here === "linux-x64" ? "x86_64" : "aarch64";
  const multiarch = `${processor}-linux-gnu`;
  const target = ["-target", `${multiarch}.${pins.GLIBC_VERSION}`];
  const version = pins.LIBSTDCXX_VERSION;
  const includes = [join("c++", version), join(multiarch, "c++", version)];
  return {
    // clang warns about libstdc++'s headers.
    cxx: [...zig, "c++", ...target, "-std=c++20", "-w", "-nostdinc++"].concat(
      includes.map((path) => `-I${join(headers, "usr", "include", path)}`),
    ),
    c: [...zig, "cc", ...target],
    link: [...zig, "cc", ...target, "-shared", "-s"],
    // apt is a C++ program, so these exist; for -lgcc_s, zig would link its own unwinder.
    runtime: [`/usr/lib/${multiarch}/libstdc++.so.6`, `/lib/${multiarch}/libgcc_s.so.1`],
  };
}

/** zig has headers of macOS too. libc++ must be the system's, as it is libmlx's: exceptions and strings
 * pass between the two. Its symbols are looked up at run time, for there is none here to link with. */
async function zigForMac(here: string, work: string): Promise<Compiler> {
  const zig = await unpackZig(here, work);
  const target = ["-target", pins.zigTarget];
  return {
    cxx: [...zig, "c++", ...target, "-std=c++20", ...pins.macFlags],
    c: [...zig, "cc", ...target],
    link: [...zig, "cc", ...target, "-shared", "-Wl,-undefined,dynamic_lookup"],
    runtime: [],
  };
}

/** The command that runs zig, with its caches next to it. */
async function unpackZig(here: string, work: string): Promise<string[]> {
  const folder = join(work, "zig");
  const program = join(folder, "ziglang", "zig");
  if (!existsSync(program)) {
    await mkdir(folder, { recursive: true });
    await unpack("zipfile", await fetchWheel(pins.zig[here]!), folder);
    await chmod(program, 0o755);
  }
  const caches = ["ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"].map((name) => `${name}=${folder}`);
  return ["env", ...caches, program];
}
