// A program that multiplies two matrices and ends.
import { findLibrary } from "../../ffi/native.ts";
import { matmul, ones } from "../../src/mlx/ops.ts";
import { openMlx } from "../../src/mlx/runtime.ts";
import { Scope } from "../../src/mlx/scope.ts";

openMlx(findLibrary());
using _ = new Scope();
const product = matmul(ones([4, 8]), ones([8, 2])).numbers();
process.exitCode = product.every((value) => value === 8) ? 0 : 1;
