import { expect, test } from "bun:test";
import { MlxError } from "../../ffi/error.ts";
import { array, liveArrays, type MlxArray } from "../../src/mlx/array.ts";
import { Compiled } from "../../src/mlx/compile.ts";
import { add, matmul, multiply, sum } from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { useMlx } from "../support/mlx.ts";

const mlx = useMlx();

test("a compiled function computes what the function does, for several inputs and outputs", () => {
  using _ = new Scope();
  using compiled = new Compiled(([a, b]) => [add(a!, b!), multiply(a!, b!)]);
  const [total, product] = compiled.call(array([1, 2, 3]), array([4, 5, 6]));
  expect(total!.numbers()).toEqual([5, 7, 9]);
  expect(product!.numbers()).toEqual([4, 10, 18]);
});

test("the function is traced once a shape on a GPU, and run each time on a CPU", () => {
  using _ = new Scope();
  let traces = 0;
  using compiled = new Compiled(([a]) => {
    traces += 1;
    return [multiply(a!, 2)];
  });
  for (const values of [[1], [2], [3], [1, 2], [3, 4]]) {
    expect(compiled.call(array(values))[0]!.numbers()).toEqual(values.map((value) => value * 2));
  }
  expect(traces).toBe(mlx.backend === "cpu" ? 5 : 2);
});

test("arrays from outside are captured", () => {
  using _ = new Scope();
  const weight = array([2, 0, 0, 3], [2, 2]);
  using compiled = new Compiled(([x]) => [matmul(x!, weight)]);
  expect(compiled.call(array([1, 1], [1, 2]))[0]!.numbers()).toEqual([2, 3]);
});

test("an exception inside the function reaches the caller as it is, and the next call works", () => {
  using _ = new Scope();
  let fails = true;
  using compiled = new Compiled(([a]) => {
    if (fails) throw new RangeError("not today");
    return [a!];
  });
  expect(() => compiled.call(array([1]))).toThrow(new RangeError("not today"));
  fails = false;
  expect(compiled.call(array([1]))[0]!.numbers()).toEqual([1]);
});

test("an MLX error inside the function names the operation", () => {
  using _ = new Scope();
  using compiled = new Compiled(([a]) => [add(a!, array([1, 2, 3]))]);
  expect(() => compiled.call(array([1, 2]))).toThrow(MlxError);
  expect(() => compiled.call(array([1, 2]))).toThrow(/^add: /);
});

test("what the function makes is freed, whatever it returns", () => {
  using _ = new Scope();
  using compiled = new Compiled(([a]) => [sum(add(multiply(a!, 2), 1))]);
  const input = array([1, 2, 3]);
  const before = liveArrays();
  const results: MlxArray[] = [];
  for (let i = 0; i < 10; i++) results.push(...compiled.call(input));
  expect(liveArrays()).toBe(before + results.length);
  expect(results.at(-1)!.numbers()).toEqual([15]);
});
