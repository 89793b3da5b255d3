// A program that multiplies two matrices and ends.
import { findLibrary } from "../../ffi/native.ts";
import { array } from "../../src/mlx/array.ts";
import { matmul } from "../../src/mlx/ops.ts";
import { openMlx } from "../../src/mlx/runtime.ts";
import { Scope } from "../../src/mlx/scope.ts";

openMlx(findLibrary());
using _ = new Scope();
const ones = (shape: number[]) => array(new Float32Array(shape[0]! * shape[1]!).fill(1), shape);
const product = matmul(ones([4, 8]), ones([8, 2])).numbers();
process.exitCode = product.every((value) => value === 8) ? 0 : 1;
