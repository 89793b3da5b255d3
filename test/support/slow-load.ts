// Preloaded into a process of mlx-serve: its engine loads as slow-load-worker.ts does.
const entry = new URL("./slow-load-worker.ts", import.meta.url).href;
const encoderEntry = new URL("../../src/text/encoder-thread.ts", import.meta.url).href;
const grammarEntry = new URL("../../src/grammar/thread.ts", import.meta.url).href;
const benchEntry = new URL("../../src/bench/thread.ts", import.meta.url).href;

Bun.plugin({
  name: "slow-load",
  setup(build) {
    build.onLoad({ filter: /src\/worker-entry\.ts$/ }, () => ({
      loader: "ts",
      contents: `export const workerEntry = new URL("${entry}");
        export const encoderEntry = new URL("${encoderEntry}");
        export const grammarEntry = new URL("${grammarEntry}");
        export const benchEntry = new URL("${benchEntry}");`,
    }));
  },
});
