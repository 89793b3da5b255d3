// Compiles the Metal kernels without Metal: `npm run -s check:metal`. Every kernel is expanded as MLX does and compiled
// by clang as C++ for OpenCL, whose address spaces follow Metal's rules, against declarations of Metal's library
// (check-kernels/metal.h). Results are not checked.
import { chmod, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as pins from "../ffi/pins.ts";
import { type Launch, recordLaunches } from "./check-kernels/launches.ts";
import { renderKernel } from "./check-kernels/metal-signature.ts";
import { MOST_SHARED_BYTES, readTree } from "./check-kernels/metal-tree.ts";
import { fetchWheel } from "./setup/fetch.ts";
import { runQuietly } from "./setup/run.ts";

const flags = [
  "-fsyntax-only",
  "-Werror",
  "-ferror-limit=4",
  ...["-x", "cl", "-cl-std=clc++2021", "-target", "spir64"],
  // Disables OpenCL's library and double.
  ...["-cl-no-stdinc", "-Xclang", "-cl-ext=-all,+cl_khr_fp16,+__opencl_c_generic_address_space"],
  ...["-Xclang", "-ast-dump"],
  ...["-include", join(import.meta.dir, "check-kernels", "metal.h")],
];

const folder = await mkdtemp(join(tmpdir(), "mlx-serve-metal-"));
try {
  if (`${process.platform}-${process.arch}` !== "linux-x64") {
    throw new Error("check:metal runs only on Linux with x64");
  }
  const clang = await unpackClang(folder);
  const kernels = Map.groupBy(recordLaunches("metal"), ({ kernel }) => kernel.name);
  const passed = await Promise.all(
    Array.from(kernels, ([name, launches]) => check(clang, name, launches)),
  );
  if (passed.includes(false)) process.exitCode = 1;
} catch (error) {
  console.error(`mlx-serve: ${error instanceof Error ? error.message : error}`);
  process.exitCode = 1;
} finally {
  await rm(folder, { recursive: true });
}

/** zig includes clang. */
async function unpackClang(to: string): Promise<string[]> {
  const zig = pins.zig["linux-x64"]!;
  const member = "ziglang/zig";
  const extract = "import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract(*sys.argv[2:])";
  const command = ["python3", "-c", extract, await fetchWheel(zig), member, to];
  await runQuietly(command, `${zig.file} could not be unpacked: is the disk full?`);
  const program = join(to, member);
  await chmod(program, 0o755);
  return [program, "clang", ...flags];
}

/** One kernel with all its launches. */
async function check(
  clang: readonly string[],
  name: string,
  launches: readonly Launch[],
): Promise<boolean> {
  const functions = new Set(launches.map(renderKernel));
  const file = join(folder, `${name}.metal`);
  await Bun.write(file, [launches[0]!.kernel.header, ...functions].join("\n"));

  const child = Bun.spawn([...clang, file], { stdio: ["ignore", "pipe", "pipe"] });
  const [tree, words] = await Promise.all([child.stdout.text(), child.stderr.text()]);
  if ((await child.exited) !== 0) {
    console.error(words);
    return false;
  }
  const { faults, sharedBytes } = readTree(tree);
  for (const fault of faults) console.error(`${name}: ${fault}`);
  if (faults.size > 0) return false;
  const memory = `${sharedBytes} of ${MOST_SHARED_BYTES} bytes of threadgroup memory`;
  console.log(`${name}: ${functions.size} instances; at most ${memory}`);
  return true;
}
