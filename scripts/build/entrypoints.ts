// The files that the executable starts from: the program and its threads.
import { join } from "node:path";

export const entrypoints = [
  "main.ts",
  "worker/main.ts",
  "self-test/thread.ts",
  "grammar/thread.ts",
  "ranks/thread.ts",
  "text/encoder/encoder-thread.ts",
  "bench/thread.ts",
].map((file) => join(import.meta.dir, "..", "..", "src", file));
