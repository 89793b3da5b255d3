// The engine's Worker as if its first step compiled kernels, slowly.
import { tellCompile } from "../../src/mlx/kernel.ts";
import { ModelEngine } from "../../src/worker/model-engine.ts";

const { step } = ModelEngine.prototype;
let isCompiled = false;

ModelEngine.prototype.step = function () {
  for (const kernel of isCompiled ? [] : ["norm", "decode"]) {
    tellCompile(kernel);
    Bun.sleepSync(Number(process.env.TEST_COMPILE_MS ?? 300));
  }
  isCompiled = true;
  return step.call(this);
};

await import("../../src/worker/main.ts");
