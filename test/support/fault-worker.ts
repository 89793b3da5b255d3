// The engine's Worker with two faults: after a prompt that begins with one token, MLX refuses an operation
// of the next step; one that begins with the other ends the Worker.
import { array } from "../../src/mlx/array.ts";
import { matmul } from "../../src/mlx/ops.ts";
import { Runner } from "../../src/model/run/runner.ts";
import { ModelEngine } from "../../src/worker/model-engine.ts";
import { DEADLY_TOKEN, REFUSED_TOKEN } from "./fault-tokens.ts";

const { submit, step } = ModelEngine.prototype;
const { launch } = Runner.prototype;
let [isDoomed, isRefused] = [false, false];

ModelEngine.prototype.submit = function (id, request) {
  isDoomed ||= request.prompt[0] === DEADLY_TOKEN;
  isRefused ||= request.prompt[0] === REFUSED_TOKEN;
  return submit.call(this, id, request);
};

ModelEngine.prototype.step = function () {
  if (isDoomed) throw new Error("the Worker ends here");
  return step.call(this);
};

/** Read in the middle of a step. */
const refused = {
  get at(): number {
    isRefused = false;
    matmul(array([1, 2, 3]), array([1, 2]));
    throw new Error("MLX has multiplied what does not fit");
  },
  next: Uint32Array.of(0),
  top: 0,
};

Runner.prototype.launch = function (inputs) {
  return launch.call(this, isRefused ? { ...inputs, scores: [refused] } : inputs);
};

await import("../../src/worker/main.ts");
