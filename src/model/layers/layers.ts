// Builds norms, MLPs, experts, projections and attention, for all architectures.
import type {
  ExpertLinear,
  ExpertProduct,
  Fused,
  Gating,
  Hidden,
  Linear,
  Norm,
} from "../../device/device.ts";
import { LoadError } from "../../files/load-error.ts";
import type { PendingProduct } from "../../kernels/product/prompt-heads.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { layerNorm as normed } from "../../mlx/fast.ts";
import {
  add,
  argsort,
  astype,
  concatenate,
  divide,
  expandDims,
  flatten,
  floorDivide,
  multiply,
  power,
  reshape,
  sigmoid,
  slice,
  split,
  sum,
  take,
  tanh,
} from "../../mlx/ops.ts";
import type { AttentionOptions, Step } from "../contract/model.ts";
import type { Rope } from "../contract/rope.ts";
import type { KvState, LayerStates } from "../contract/states.ts";
import { countOf, type Extent, type Slice, sliceOf, times } from "../weights/extents.ts";
import type { Division, Total } from "../weights/rank-parts.ts";
import type { Weights } from "../weights/weights.ts";
import type { Activation } from "./activations.ts";
import { type Crossing, handingOn, takingOver } from "./crossings.ts";

/** Loads an RMS norm. `offset` is added to the weight: Gemma stores weight - 1. */
export function rmsNorm(
  { arrays, device }: Weights,
  name: string,
  dims: number,
  eps: number,
  offset = 0,
): Norm {
  const stored = arrays.tensor(`${name}.weight`, [dims]);
  const weight = offset === 0 ? stored : arrays.computed(() => add(stored, offset));
  const norm = (x: MlxArray) => device.rmsNorm(x, weight, eps);
  return Object.assign(norm, { weight, eps });
}

/** A norm of any kind. Devices fuse only RMS norms into products. */
export type AnyNorm = Norm | ((x: Hidden) => MlxArray);

/** Loads a layer norm with the weight and bias that the file has; `offset` is added to the weight. */
export function layerNorm(
  { stored: file, arrays }: Weights,
  name: string,
  dims: number,
  eps: number,
  offset = 0,
): AnyNorm {
  const [stored, bias] = ["weight", "bias"].map((part) =>
    file.has(`${name}.${part}`) ? arrays.tensor(`${name}.${part}`, [dims]) : undefined,
  );
  const weight = stored && offset !== 0 ? arrays.computed(() => add(stored, offset)) : stored;
  return (x) => normed(x, weight, bias, eps);
}

/** Loads an RMS norm per group over an axis that is divided among ranks. The ranks' sums of squares are added. */
export function dividedNorm(
  weights: Weights,
  name: string,
  dims: Extent,
  eps: number,
  groups = 1,
): AnyNorm {
  if (typeof dims === "number") return rmsNorm(weights, name, dims, eps);
  const weight = weights.part(`${name}.weight`, dims);
  const width = dims.of / groups;
  const place = Math.floor(dims.first / width);
  const isOwn = weights.arrays.constant(new Float32Array(groups).fill(1, place, place + 1));
  const total = weights.ranks.totals(dims)!;
  return (x) => {
    const exact = astype(x, "float32");
    const all = sum(multiply(exact, exact), -1, true); // (T, 1)
    const own = dims.copies ? divide(all, dims.copies) : all;
    const squares = slice(total(multiply(own, isOwn)), 1, place, place + 1);
    const scale = power(add(divide(squares, width), eps), -0.5);
    return multiply(astype(multiply(exact, scale), x.dtype), weight);
  };
}

/** Makes a layer norm without weights. */
export const plainLayerNorm =
  (eps: number): AnyNorm =>
  (x) =>
    normed(x, undefined, undefined, eps);

/** Makes an RMS norm over heads of this size, without weights. */
export function plainNorm(weights: Weights, headDim: number, eps: number): Norm {
  const norm = (x: MlxArray) => weights.device.rmsNorm(x, undefined, eps);
  const weight = weights.arrays.constant(new Float32Array(headDim).fill(1));
  return Object.assign(norm, { weight, eps });
}

/** Maps x into (-cap, cap). */
export function softCap(x: MlxArray, cap: number): MlxArray {
  return multiply(tanh(divide(x, cap)), cap);
}

/** Returns this rank's part of an MLP's width. */
export function ownWidth(weights: Weights, name: string, hidden: number): Extent {
  return weights.ranks.divide(hidden, { inputOf: [`${name}.down_proj`] });
}

/**
 * Builds down(gating(gate(x), up(x))), with gate and up computed as one product. `own`: this rank's part of the MLP's
 * width; pass it if `gating` needs the same part.
 */
export function gatedMlp(
  weights: Weights,
  name: string,
  dims: number,
  hidden: number,
  gating: Gating = "swiglu",
  own = ownWidth(weights, name, hidden),
): Linear {
  const [joint, parts] = [`${name}.gate_up_proj`, [`${name}.gate_proj`, `${name}.up_proj`]];
  const gateUp = weights.matrices.has(joint)
    ? weights.linear(joint, dims, [own, own])
    : weights.joined(joint, parts, dims, [own, own]);
  return joinedMlp(gateUp, weights.linear(`${name}.down_proj`, own, dims), gating);
}

/** Builds an MLP whose gate and up are one product. */
function joinedMlp(gateUp: Linear, down: Linear, gating: Gating): Linear {
  return (x, { norm, residual } = {}) => down(gateUp(x, { norm, gating }), { residual });
}

/** Builds down(activation(up(x))). */
export function plainMlp(
  weights: Weights,
  name: string,
  dims: number,
  hidden: number,
  activation: Activation,
): Linear {
  const own = ownWidth(weights, name, hidden);
  const up = weights.linear(`${name}.up_proj`, dims, own);
  const down = weights.linear(`${name}.down_proj`, own, dims);
  return (x, { norm, residual } = {}) => down(activation(up(x, { norm })), { residual });
}

export type ExpertSizes = { experts: number; dims: number; hidden: number };

/**
 * Computes the output of each chosen expert: x (T, D), chosen (T, K) -> (T, K, D). A rank has a part of every
 * expert's width; `total` sums the ranks' results.
 */
export type ExpertMlps = ((x: MlxArray, chosen: MlxArray) => MlxArray) & {
  total?: Total | undefined;
};

export function expertMlps(
  weights: Weights,
  name: string,
  { experts, dims, hidden }: ExpertSizes,
  gating: Gating = "swiglu",
): ExpertMlps {
  const parts = [`${name}.gate_proj`, `${name}.up_proj`];
  const own = ownWidth(weights, name, hidden);
  const gateUp = weights.joinedExperts(`${name}.gate_up_proj`, parts, experts, dims, own);
  const down = weights.experts(`${name}.down_proj`, experts, own, dims);
  return byExpert(down, dims, weights.ranks.totals(own), (x, rows, sorted) =>
    down(gateUp(x, rows, { gating, ...sorted }), rows, sorted),
  );
}

/** Builds down(activation(up(x))) for each expert. */
export function ungatedExpertMlps(
  weights: Weights,
  name: string,
  { experts, dims, hidden }: ExpertSizes,
  activation: (x: MlxArray) => MlxArray,
): ExpertMlps {
  const own = ownWidth(weights, name, hidden);
  const up = weights.experts(`${name}.up_proj`, experts, dims, own);
  const down = weights.experts(`${name}.down_proj`, experts, own, dims);
  return byExpert(down, dims, weights.ranks.totals(own), (x, rows, sorted) =>
    down(activation(up(x, rows, sorted)), rows, sorted),
  );
}

/** Makes experts' MLPs that sort rows by expert, if there are enough rows for that to be faster on the device. */
function byExpert(
  { sortedRows }: ExpertLinear,
  dims: number,
  total: Total | undefined,
  mlp: ExpertProduct,
): ExpertMlps {
  const mlps = (x: MlxArray, chosen: MlxArray) => {
    const [tokens, each] = chosen.shape as [number, number];
    const rows = flatten(chosen); // (T * K)
    if (rows.size < sortedRows) return reshape(mlp(x, rows), [tokens, each, dims]);
    const order = argsort(rows);
    const ordered = take(x, floorDivide(order, each)); // (T * K, D)
    const made = mlp(ordered, take(rows, order), { sorted: true });
    return reshape(take(made, argsort(order)), [tokens, each, dims]);
  };
  return Object.assign(mlps, { total });
}

/** Head counts and sizes of this rank. `own` tells which heads, if the rank does not have all. */
export type AttentionSizes = {
  dims: number;
  heads: number;
  kvHeads: number;
  headDim: number;
  /** Features of a head's values, if fewer than those of its keys. */
  valueDim?: number | undefined;
  own?: { heads: Slice; kvHeads: Slice } | undefined;
};

/** Returns this rank's part of an axis that has `each` features per query head. */
export function headFeatures(
  { heads, own, ...sizes }: Omit<AttentionSizes, "dims" | "kvHeads">,
  each = sizes.headDim,
): Extent {
  return times(own?.heads ?? heads, each);
}

export function kvFeatures(
  { kvHeads, own, ...sizes }: Omit<AttentionSizes, "dims" | "heads">,
  each = sizes.headDim,
): Extent {
  return times(own?.kvHeads ?? kvHeads, each);
}

/**
 * Returns this rank's heads: KV heads with all their queries, or, with more ranks than KV heads, some queries of a KV
 * head that other ranks have too; all heads if they cannot be divided. `output`: the projection after attention.
 */
export function ownHeads(
  weights: Weights,
  name: string,
  sizes: AttentionSizes,
  output = "o_proj",
): AttentionSizes {
  const { group } = weights.ranks;
  const { heads, kvHeads, valueDim: value = sizes.headDim } = sizes;
  if (!group) return sizes;
  const each = heads / kvHeads;
  if (!Number.isInteger(each)) return sizes;
  const isShared = kvHeads < group.size;
  const inputOf = [`${name}.${output}`];
  const features = weights.ranks.divide(
    heads * value,
    isShared
      ? { unit: value, inputOf, sliceOf: sharedSlice(each * value, kvHeads) }
      : { unit: each * value, inputOf },
  );
  if (typeof features === "number") return sizes;
  const queries = times(features, 1 / value) as Slice;
  const keys = isShared
    ? { count: 1, of: kvHeads, ...sharedBy(kvHeads, group) }
    : (times(queries, 1 / each) as Slice);
  return {
    ...sizes,
    heads: queries.count,
    kvHeads: keys.count,
    own: { heads: queries, kvHeads: keys },
  };
}

type Ranks = { rank: number; size: number };

/**
 * Returns, for fewer KV heads than ranks, the rank's KV head (`first`), the number of ranks that share this head, and
 * the rank's place among these ranks.
 */
function sharedBy(kvHeads: number, { rank, size }: Ranks) {
  const first = Math.ceil(((rank + 1) * kvHeads) / size) - 1;
  const ranksFrom = (kvHead: number) => Math.floor((kvHead * size) / kvHeads);
  return { first, copies: ranksFrom(first + 1) - ranksFrom(first), place: rank - ranksFrom(first) };
}

/** Divides the queries of a KV head (`each` features) among the ranks that share the head. */
function sharedSlice(each: number, kvHeads: number): NonNullable<Division["sliceOf"]> {
  return (unit, ranks) => {
    const { first, copies, place } = sharedBy(kvHeads, ranks);
    const most = Math.ceil(ranks.size / kvHeads);
    const canDivide = each % unit === 0 && each / unit >= most;
    const own = sliceOf(each, unit, { rank: place, size: copies });
    if (!canDivide || typeof own === "number") return each * kvHeads;
    return { first: first * each + own.first, count: own.count, of: each * kvHeads };
  };
}

/** Projects x (T, dims) to queries, keys and values, concatenated: (T, (heads + 2 kvHeads) * D) */
export type Projection = (x: Hidden, fused?: Pick<Fused, "norm">) => MlxArray | PendingProduct;

/** Builds one projection for queries, keys and values, whether the file has one matrix or three. */
export function projection(
  weights: Weights,
  name: string,
  sizes: AttentionSizes,
  norms: { q?: AnyNorm; k?: AnyNorm } = {},
): Projection {
  const { dims } = sizes;
  const [queries, keys] = [headFeatures(sizes), kvFeatures(sizes)];
  const outputs = [queries, keys, keys];
  const parts = ["q_proj", "k_proj", "v_proj"].map((part) => `${name}.${part}`);
  const joint = `${name}.qkv_proj`;
  const product = weights.matrices.has(joint)
    ? weights.linear(joint, dims, outputs)
    : weights.joined(joint, parts, dims, outputs);
  const { q: qNorm, k: kNorm } = norms;
  if (!qNorm || !kNorm) return product;
  return (x, fused) => {
    const ends = [countOf(queries), countOf(queries) + countOf(keys)];
    const [q, k, v] = split(product(x, fused), ends);
    return concatenate([qNorm(q!), kNorm(k!), v!], -1);
  };
}

/** Builds a projection with the norms q_norm and k_norm, each over all heads at once. */
export function normedProjection(
  weights: Weights,
  name: string,
  sizes: AttentionSizes,
  eps: number,
): Projection {
  return projection(weights, name, sizes, {
    q: dividedNorm(weights, `${name}.q_norm`, headFeatures(sizes), eps),
    k: dividedNorm(weights, `${name}.k_norm`, kvFeatures(sizes), eps),
  });
}

/** A projection that may also ask the step for positions. */
export type HeadProjection = (
  x: Hidden,
  fused: Pick<Fused, "norm">,
  step: Step,
) => MlxArray | PendingProduct;

export type AttentionParts = {
  attention: AttentionOptions;
  rope?: Rope | undefined;
  project?: HeadProjection | undefined;
  /** Changes attention's output before o_proj; also gets attention's input and the norm of that input. */
  afterwards?:
    | ((attended: MlxArray, x: MlxArray, fused: Pick<Fused, "norm">) => MlxArray)
    | undefined;
  /** Norms of each head of queries, keys and values. */
  qNorm?: Norm | undefined;
  kNorm?: Norm | undefined;
  vNorm?: Norm | undefined;
  /** Number of inputs of o_proj, if it differs from the features of all heads. */
  outputs?: Extent | undefined;
  /** State of an earlier layer, whose keys and values this layer reads instead of writing its own. */
  shared?: KvState | undefined;
  /** Keys and values of a layer on another rank, which this layer stores as its own. */
  taken?: Crossing | undefined;
  /** Crossing that passes this layer's keys and values to layers on other ranks. */
  handsOn?: Crossing | undefined;
};

/** Computes all tokens. `forRows` returns only the outputs of `rows` (R), but writes all tokens' state. */
type OfTokens<Inputs extends unknown[]> = ((...inputs: Inputs) => Hidden) & {
  forRows?: ((rows: MlxArray, ...inputs: Inputs) => Hidden) | undefined;
};

/** Makes an `OfTokens` from a function that takes `rows`, which are undefined to compute all tokens. */
export function ofTokens<Inputs extends unknown[]>(
  compute: (rows: MlxArray | undefined, ...inputs: Inputs) => Hidden,
) {
  const all = (...inputs: Inputs) => compute(undefined, ...inputs);
  return Object.assign(all, { forRows: compute });
}

/** Restricts the computation to `rows`, if given. */
export function forRows<Inputs extends unknown[]>(
  block: OfTokens<Inputs>,
  rows: MlxArray | undefined,
  ...inputs: Inputs
): Hidden {
  return (rows && block.forRows?.(rows, ...inputs)) ?? rowsOf(block(...inputs), rows);
}

/** Picks `rows` of x (T, ...), or all rows if undefined. */
export function rowsOf(x: MlxArray, rows: MlxArray | undefined): MlxArray {
  return rows ? take(x, rows, 0) : x;
}

type AttentionInputs = [x: Hidden, step: Step, fused?: Pick<Fused, "norm" | "residual">];

export type AttentionBlock = OfTokens<AttentionInputs>;

/** `again` makes another layer with the same weights, but with keys and values of its own. */
export type SharedBlock = AttentionBlock & { state: KvState; again(): SharedBlock };

/** Projects x to queries, keys and values, attends with RoPE, and projects back. */
export function attentionBlock(
  weights: Weights,
  name: string,
  states: LayerStates,
  sizes: AttentionSizes,
  parts: AttentionParts,
): SharedBlock {
  const { rope, qNorm, kNorm, vNorm, shared, taken, handsOn, afterwards } = parts;
  const width = headFeatures(sizes);
  if (rope && rope.dims > sizes.headDim) {
    const features = `${rope.dims} features of heads that have ${sizes.headDim}`;
    throw new LoadError(`config.json: RoPE cannot rotate ${features}`);
  }
  const own: HeadProjection =
    parts.project ??
    (shared || taken
      ? weights.linear(`${name}.q_proj`, sizes.dims, width)
      : projection(weights, name, sizes));
  const whole = taken ? takingOver(own, taken) : own;
  const project = handsOn ? handingOn(whole, handsOn.width, handsOn) : whole;
  const oProj = weights.linear(`${name}.o_proj`, parts.outputs ?? width, sizes.dims);
  const attention = ownSinks(weights, sizes, parts.attention);
  const heads = { ...sizes, qNorm, kNorm, vNorm, rope, sharesKv: shared !== undefined };
  const over = (state: KvState): SharedBlock => {
    const block = ofTokens<AttentionInputs>((rows, x, step, { norm, residual } = {}) => {
      const qkv = project(x, { norm }, step);
      const attended = step.attend(state, qkv, heads, attention, rows);
      const made = afterwards ? afterwards(attended, rowsOf(x, rows), { norm }) : attended;
      return oProj(made, { residual: residual && rowsOf(residual, rows) });
    });
    return Object.assign(block, { state, again });
  };
  const again = () => over(states.kv({ ...sizes, window: attention.window }));
  return shared ? over(shared) : again();
}

function ownSinks(
  weights: Weights,
  { own }: AttentionSizes,
  attention: AttentionOptions,
): AttentionOptions {
  const { sinks } = attention;
  if (!sinks || !own) return attention;
  const { first, count } = own.heads;
  const rankSinks = weights.arrays.computed(() => slice(sinks, 0, first, first + count));
  return { ...attention, sinks: rankSinks };
}

/** Gates attention's output by the layer's input. */
export type OutputGate = {
  name: string;
  /** Whether there is one gate per head instead of one per feature. */
  isPerHead?: boolean | undefined;
  /** Activation of the gate, in place of the sigmoid. */
  open?: Activation | undefined;
};

export function makeOutputGate(
  weights: Weights,
  name: string,
  { dims, heads, headDim }: { dims: number; heads: Extent; headDim: number },
  { name: part, isPerHead = false, open = sigmoid }: OutputGate,
): NonNullable<AttentionParts["afterwards"]> {
  const gate = weights.linear(`${name}.${part}`, dims, times(heads, isPerHead ? 1 : headDim));
  return (attended, x, fused) => opened(attended, astype(open(gate(x, fused)), attended.dtype));
}

/** Multiplies x (T, heads * D) by gates, per head (T, heads) or elementwise (T, heads * D). */
function opened(x: MlxArray, gates: MlxArray): MlxArray {
  const [tokens, width] = x.shape as [number, number];
  const heads = gates.shape[1]!;
  if (heads === width) return multiply(x, gates);
  const byHead = reshape(x, [tokens, heads, width / heads]);
  return reshape(multiply(byHead, expandDims(gates, -1)), [tokens, width]);
}

/** A whole layer. `input` is the layer's additional input, in models that have one. */
export type Block = OfTokens<[x: Hidden, step: Step, input?: MlxArray]>;

/** Builds a layer with norms before attention and MLP: norm, attend, add; norm, MLP, add. */
export function preNormBlock(
  attend: AttentionBlock,
  mlp: Linear,
  inputNorm: Norm,
  postNorm: Norm,
): Block {
  return (x, step) => {
    const h = attend(x, step, { norm: inputNorm, residual: x });
    return mlp(h, { norm: postNorm, residual: h });
  };
}
