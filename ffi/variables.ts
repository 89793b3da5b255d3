// Variables that MLX reads from the environment of the process when it is opened. Bun's process.env is a
// copy that native code does not see.
import { dlopen } from "bun:ffi";
import { join } from "node:path";
import { cText } from "./memory.ts";
import { cacheDirectory } from "./native.ts";

/** What suits a server, where nobody has said otherwise. */
function suitable(): Record<string, string> {
  return {
    // Steps are graphs of our own (ffi/cuda/recording.cpp); beside them MLX's save no time.
    MLX_USE_CUDA_GRAPHS: "0",
    // Kernels take seconds to compile: once, not once a start.
    MLX_PTX_CACHE_DIR: join(cacheDirectory(), "ptx"),
  };
}

/** Before libmlx is opened. Only Linux has MLX on CUDA. */
export function setVariables(): void {
  if (process.platform !== "linux") return;
  const { symbols, close } = dlopen("libc.so.6", {
    setenv: { args: ["buffer", "buffer", "i32"], returns: "i32" }, // int setenv(const char*, const char*, int)
  });
  const keep = 0;
  for (const [name, value] of Object.entries(suitable())) {
    symbols.setenv(cText(name), cText(value), keep);
  }
  close();
}
