// Variables that MLX reads from the environment of the process. Bun's process.env is a copy that native code
// does not see.
import { dlopen } from "bun:ffi";
import { cText } from "./memory.ts";

/** Sets those that nobody has set. Only Linux has MLX on CUDA, which they are for. */
export function setVariables(values: Record<string, string>): void {
  if (process.platform !== "linux") return;
  const { symbols, close } = dlopen("libc.so.6", {
    setenv: { args: ["buffer", "buffer", "i32"], returns: "i32" }, // int setenv(const char*, const char*, int)
  });
  const keep = 0;
  for (const [name, value] of Object.entries(values)) {
    symbols.setenv(cText(name), cText(value), keep);
  }
  close();
}
