// Measures one operation through the FFI, including freeing its handle: `npm run -s bench:ffi`.
import { findLibrary } from "../../ffi/native.ts";
import { array } from "../../src/mlx/array.ts";
import { add } from "../../src/mlx/ops.ts";
import { openMlx } from "../../src/mlx/runtime.ts";
import { Scope } from "../../src/mlx/scope.ts";

const OPERATIONS = 1_000_000;

openMlx(findLibrary());
using _ = new Scope();
const a = array([1, 2, 3]);
for (let round = 1; round <= 5; round++) {
  const start = Bun.nanoseconds();
  for (let i = 0; i < OPERATIONS; i += 100) {
    using _ = new Scope();
    for (let j = 0; j < 100; j++) add(a, a);
  }
  const us = (Bun.nanoseconds() - start) / OPERATIONS / 1e3;
  console.log(`add and free, round ${round}: ${us.toFixed(2)} us`);
}
