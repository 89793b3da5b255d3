// Preloaded into a process of mlx-serve: its engine loads as slow-load-worker.ts does.
import { readFileSync } from "node:fs";

const entry = new URL("./slow-load-worker.ts", import.meta.url).href;

Bun.plugin({
  name: "slow-load",
  setup(build) {
    build.onLoad({ filter: /src\/worker-entry\.ts$/ }, ({ path }) => {
      const text = readFileSync(path, "utf8");
      const contents = text.replace('"./worker/main.ts", import.meta.url', `"${entry}"`);
      if (contents === text) throw new Error(`${path} has no entry of the Worker`);
      return { loader: "ts", contents };
    });
  },
});
