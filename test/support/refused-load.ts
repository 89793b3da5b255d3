// A process of its own that tries to load a model and prints, as JSON, why that was refused and how much memory the
// attempt took at most:
//   bun test/support/refused-load.ts <path> <options as JSON>
import { readFileSync } from "node:fs";
import { findLibrary } from "../../ffi/native.ts";
import { defaultEngineOptions } from "../../src/engine/protocol.ts";
import { openMlx } from "../../src/mlx/runtime.ts";
import { Models } from "../../src/worker/models.ts";
import { deviceOf } from "./devices.ts";

const [, , path, options] = process.argv;
openMlx(findLibrary(), { device: "cpu" });
const models = new Models(() => deviceOf("cpu"));
const baseline = process.memoryUsage.rss();
let message = "";
try {
  models.load("model", path!, { ...defaultEngineOptions, ...JSON.parse(options!) }, {});
} catch (error) {
  message = (error as Error).message;
}
// Linux keeps a record that has seen every moment; elsewhere it is what is there now.
const status = process.platform === "linux" ? readFileSync("/proc/self/status", "utf8") : "";
const recorded = 1024 * Number(/^VmHWM:\s*(\d+) kB$/m.exec(status)?.[1] ?? 0);
const peak = Math.max(recorded, process.memoryUsage.rss());
console.log(JSON.stringify({ message, grownBytes: peak - baseline }));
