// A program that makes and frees the results of a million operations, and prints what that has left.
import { findLibrary } from "../../ffi/native.ts";
import { array, liveArrays } from "../../src/mlx/array.ts";
import { add } from "../../src/mlx/ops.ts";
import { openMlx } from "../../src/mlx/runtime.ts";
import { Scope } from "../../src/mlx/scope.ts";

openMlx(findLibrary());
using _ = new Scope();
const a = array([1, 2, 3]);

function run(count: number): void {
  for (let i = 0; i < count; i += 100) {
    using _ = new Scope();
    for (let j = 0; j < 100; j++) add(a, a);
  }
  Bun.gc(true);
}

run(200_000);
const [handles, resident] = [liveArrays(), process.memoryUsage.rss()];
run(1_000_000);
const left = { handles: liveArrays() - handles, bytes: process.memoryUsage.rss() - resident };
console.log(JSON.stringify(left));
