// To be preloaded: the engine's Worker is one whose first step compiles kernels, slowly (compile-worker.ts).
import { readFileSync } from "node:fs";
import { plugin } from "bun";

plugin({
  name: "compiling-engine",
  setup(build) {
    build.onLoad({ filter: /\/src\/worker-entry\.ts$/ }, ({ path }) => ({
      contents: readFileSync(path, "utf8").replace(
        "./worker/main.ts",
        "../test/support/compile-worker.ts",
      ),
      loader: "ts",
    }));
  },
});
