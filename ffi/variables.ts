// Sets environment variables for MLX. Native code does not see changes to Bun's process.env, which is a copy.
import { dlopen } from "bun:ffi";
import { cText } from "./memory.ts";

/** Sets those variables that are not set yet. They matter only to CUDA, which MLX supports on Linux only. */
export function setVariables(values: Record<string, string>): void {
  if (process.platform !== "linux") return;
  const { symbols, close } = dlopen("libc.so.6", {
    setenv: { args: ["buffer", "buffer", "i32"], returns: "i32" }, // int setenv(const char*, const char*, int)
  });
  const overwrite = 0;
  for (const [name, value] of Object.entries(values)) {
    symbols.setenv(cText(name), cText(value), overwrite);
  }
  close();
}
