// A start of its own in which one kernel is run (test/mlx/kernel.test.ts).
import { engineSetup } from "../../ffi/native.ts";
import { array } from "../../src/mlx/array.ts";
import { Kernel } from "../../src/mlx/kernel.ts";
import { openMlx } from "../../src/mlx/runtime.ts";
import { Scope } from "../../src/mlx/scope.ts";

const { library, device } = engineSetup();
openMlx(library, { device });
using _ = new Scope();
const kernel = new Kernel("cuda", {
  name: "squares",
  inputs: ["x"],
  outputs: ["y"],
  source: "y[threadIdx.x] = x[threadIdx.x] * x[threadIdx.x];",
});
const configured = kernel.configure({
  outputs: [{ shape: [3], dtype: "float32" }],
  grid: [3, 1, 1],
  threadGroup: [3, 1, 1],
});
const [squares] = configured.call(array(Float32Array.of(1, 2, 3)));
console.log(squares!.numbers().join());
