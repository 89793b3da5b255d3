// Which operations return views or overwrite an input, as ffi/symbols.ts declares, by the addresses of
// what MLX computes on a CPU. A sketch estimates memory by these declarations.
import { describe, expect, test } from "bun:test";
import { mlxc } from "../../ffi/lib.ts";
import { backend } from "../../ffi/native.ts";
import { operations } from "../../ffi/symbols.ts";
import { array, evaluate, type MlxArray } from "../../src/mlx/array.ts";
import { rmsNorm } from "../../src/mlx/fast.ts";
import * as ops from "../../src/mlx/ops.ts";
import { hold, Scope } from "../../src/mlx/scope.ts";
import { useMlx } from "../support/mlx.ts";

useMlx();

const SIZE = 64;
const indices = () => ops.zeros([SIZE, 1], "uint32");
const flag = () => ops.zeros([], "bool");

/** By symbol: a call with an input (SIZE, SIZE), float32 unless a type is given. */
const calls: Record<string, (x: MlxArray) => MlxArray | MlxArray[]> = {
  mlx_erf: ops.erf,
  mlx_erfinv: ops.erfinv,
  mlx_exp: ops.exp,
  mlx_expm1: ops.expm1,
  mlx_log: ops.log,
  mlx_negative: ops.negative,
  mlx_round: ops.round,
  mlx_sigmoid: ops.sigmoid,
  mlx_tanh: ops.tanh,
  mlx_add: (x) => ops.add(x, 1),
  mlx_subtract: (x) => ops.subtract(x, 1),
  mlx_multiply: (x) => ops.multiply(x, 2),
  mlx_divide: (x) => ops.divide(x, 2),
  mlx_floor_divide: (x) => ops.floorDivide(x, 2),
  mlx_power: (x) => ops.power(x, 2),
  mlx_maximum: (x) => ops.maximum(x, 1),
  mlx_minimum: (x) => ops.minimum(x, 1),
  mlx_logaddexp: (x) => ops.logAddExp(x, 1),
  mlx_less: (x) => ops.less(x, flag()),
  mlx_less_equal: (x) => ops.lessEqual(x, flag()),
  mlx_greater: (x) => ops.greater(x, flag()),
  mlx_greater_equal: (x) => ops.greaterEqual(x, flag()),
  mlx_logical_and: (x) => ops.logicalAnd(x, flag()),
  mlx_where: (x) => ops.where(flag(), x, 0),
  mlx_clip: (x) => ops.clip(x, 0, 1),
  mlx_astype: (x) => ops.astype(x, "int32"),
  mlx_softmax_axes: (x) => ops.softmax(x),
  mlx_fast_rms_norm: (x) => rmsNorm(x, undefined, 1e-5),
  mlx_swapaxes: (x) => ops.swapAxes(x, 0, 1),
  mlx_expand_dims_axes: (x) => ops.expandDims(x, 0),
  mlx_squeeze_axes: (x) => ops.squeeze(ops.expandDims(x, 0), 0),
  mlx_slice: (x) => ops.slice(x, 1, 3, 5),
  mlx_split: (x) => ops.split(x, 2),
  mlx_split_sections: (x) => ops.split(x, [3]),
  mlx_reshape: (x) => ops.reshape(x, [-1]),
  mlx_flatten: ops.flatten,
  mlx_sum_axes: (x) => ops.sum(x, -1),
  mlx_max_axes: (x) => ops.max(x, -1),
  mlx_logsumexp_axes: (x) => ops.logSumExp(x, -1),
  mlx_argmax_axis: (x) => ops.argmax(x),
  mlx_cumsum_axis: (x) => ops.cumsum(x),
  mlx_argsort_axis: (x) => ops.argsort(x),
  mlx_argpartition_axis: (x) => ops.argpartition(x, 3),
  mlx_concatenate_axis: (x) => ops.concatenate([x, x]),
  mlx_take_axis: (x) => ops.take(x, indices()),
  mlx_take_along_axis: (x) => ops.takeAlongAxis(x, indices()),
  mlx_put_along_axis: (x) => ops.putAlongAxis(x, indices(), 1),
  mlx_scatter_add_axis: (x) => ops.scatterAddAxis(x, indices(), 1),
  mlx_matmul: (x) => ops.matmul(x, ops.zeros([SIZE, SIZE])),
  mlx_addmm: (x) => ops.addmm(x, ops.zeros([SIZE, SIZE]), ops.zeros([SIZE, SIZE])),
  mlx_quantize: (x) => Object.values(ops.quantize(x)).map((each) => each!),
};

/** Their results have the size of an input only if it is of bools. */
const ofBools = /^mlx_(less|greater|logical)/;
/** On a CPU several operations, the first of which needs its input to the end; or not compiled. */
const composed = ["mlx_fast_layer_norm", "mlx_fast_rope_dynamic", "mlx_closure_apply"];

const addressOf = ({ handle }: MlxArray) => Number(mlxc.mlx_array_data_uint8(handle));

/** Whether results share the input's memory: a `kept` one's, or one's that nothing else reads. */
function shares(symbol: string, { kept, gaps = false }: { kept: boolean; gaps?: boolean }) {
  using _ = new Scope();
  const dtype = ofBools.test(symbol) ? "bool" : "float32";
  const all = array(new Array(SIZE * SIZE).fill(0.5), [SIZE, SIZE], dtype);
  const x = hold(gaps ? ops.swapAxes(all, 0, 1) : all);
  evaluate(x);
  const [start, end] = [addressOf(x), addressOf(x) + x.bytes];
  const results = [calls[symbol]!(x)].flat();
  if (!kept) x.free();
  evaluate(...results);
  const found = results.map((each) => addressOf(each) >= start && addressOf(each) < end);
  if (kept) x.free();
  expect(new Set(found).size).toBe(1);
  return found[0];
}

describe.skipIf(backend() !== "cpu")("memory that results share with inputs", () => {
  test("each operation that is declared to share is called here", () => {
    const declared = [...operations.overwriting, ...operations.views];
    const missing = declared.filter((symbol) => !(symbol in calls));
    expect(missing.toSorted()).toEqual(composed.toSorted());
  });

  test.each(Object.keys(calls))("%s", (symbol) => {
    const isView = operations.views.has(symbol);
    const isOverwriting = operations.overwriting.has(symbol);
    expect(shares(symbol, { kept: true })).toBe(isView);
    if (isView || isOverwriting) expect(shares(symbol, { kept: false })).toBe(true);
    const copies = operations.regroupings.has(symbol);
    if (isView) expect(shares(symbol, { kept: true, gaps: true })).toBe(!copies);
  });
});
