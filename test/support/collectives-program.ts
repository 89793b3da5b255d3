// What each of several ranks runs to compare its collectives with plain arithmetic: a line of JSON each.
import { existsSync } from "node:fs";
import { findLibrary } from "../../ffi/native.ts";
import { array, evaluate, type MlxArray } from "../../src/mlx/array.ts";
import { type Connections, MlxGroup } from "../../src/mlx/distributed.ts";
import type { Dtype } from "../../src/mlx/dtype.ts";
import { add, astype, multiply } from "../../src/mlx/ops.ts";
import { openMlx } from "../../src/mlx/runtime.ts";
import { Scope } from "../../src/mlx/scope.ts";

export type CollectiveResult = { name: string; rank: number; isRight: boolean };

const [connections] = process.argv.slice(2) as [Connections];
const { backend } = openMlx(findLibrary(), { device: "cpu" });
const group = new MlxGroup(connections, backend);
const { rank, size } = group;
const ranks = Array.from({ length: size }, (_, each) => each);

/** What a rank brings: small whole numbers, which every type adds up exactly. */
function numbersOf(each: number, count: number): number[] {
  return Array.from({ length: count }, (_, i) => (i * 7 + each * 3) % 23);
}

function own(count: number, dtype: Dtype): MlxArray {
  return astype(array(Float32Array.from(numbersOf(rank, count))), dtype);
}

function sumOf(count: number): number[] {
  const parts = ranks.map((each) => numbersOf(each, count));
  return parts[0]!.map((_, i) => parts.reduce((sum, part) => sum + part[i]!, 0));
}

function compare(name: string, made: MlxArray, expected: readonly number[]): void {
  const numbers = astype(made, "float32").numbers();
  const isRight =
    numbers.length === expected.length && numbers.every((each, i) => each === expected[i]);
  console.log(JSON.stringify({ name, rank, isRight } satisfies CollectiveResult));
}

/** From rank to rank and back to the first. */
function sendAround(count: number): MlxArray {
  const [before, after] = [(rank + size - 1) % size, (rank + 1) % size];
  const receive = () => group.receive([count], "float32", before);
  const x = rank === 0 ? own(count, "float32") : receive();
  evaluate(group.send(x, after));
  return rank === 0 ? receive() : x;
}

for (const dtype of ["float32", "bfloat16", "uint32"] as const) {
  // The last ones take several pieces.
  for (const count of [1, 5, 18_432, 200_003]) {
    using _ = new Scope();
    compare(`sum of ${count} ${dtype}`, group.allSum(own(count, dtype)), sumOf(count));
    const all = ranks.flatMap((each) => numbersOf(each, count));
    compare(`${count} ${dtype} of all`, group.allGather(own(count, dtype)), all);
  }
}
using _ = new Scope();
const SUMS = 200;
let total = multiply(own(8, "float32"), 0);
for (let i = 0; i < SUMS; i++) total = add(total, group.allSum(multiply(own(8, "float32"), i)));
const weight = (SUMS * (SUMS - 1)) / 2;
compare(
  "sums, one behind the other",
  total,
  sumOf(8).map((each) => each * weight),
);
// The second is more than may be under way at once.
for (const count of [3, 2_000_000])
  compare(`${count} around`, sendAround(count), numbersOf(0, count));
const isThere = existsSync(process.env.MLX_SERVE_RANK_MEMORY!);
compare("the file is gone once all ranks have come", array([isThere ? 1 : 0]), [0]);
process.exit(0);
