// A process of its own that loads a model and prints, as JSON, how much memory that took:
//   bun test/support/load-memory.ts <path>
import { existsSync, readFileSync } from "node:fs";
import { findLibrary } from "../../ffi/native.ts";
import { openMlx } from "../../src/mlx/runtime.ts";
import { loadModel } from "../../src/model/load.ts";
import { deviceOf } from "./devices.ts";

openMlx(findLibrary(), { device: "cpu" });
Bun.gc(true);
const baseline = process.memoryUsage.rss();
const start = performance.now();
let sampled = 0;
const onProgress = () => {
  sampled = Math.max(sampled, process.memoryUsage.rss());
};
const model = loadModel(process.argv[2]!, { device: deviceOf("cpu"), onProgress });
const seconds = (performance.now() - start) / 1e3;
const peak = Math.max(sampled, recordedPeak());
const { weightBytes } = model;
model.free();
console.log(JSON.stringify({ baseline, peak, weightBytes, seconds }));

/** Linux keeps a record that has seen every moment, those between two calls too. */
function recordedPeak(): number {
  const status = "/proc/self/status";
  const text = existsSync(status) ? readFileSync(status, "utf8") : "";
  return 1024 * Number(/^VmHWM:\s*(\d+) kB$/m.exec(text)?.[1] ?? 0);
}
