// What the architectures have in common.
import type {
  ExpertLinear,
  ExpertProduct,
  Fused,
  Gating,
  Linear,
  Norm,
} from "../../device/device.ts";
import { LoadError } from "../../files/load-error.ts";
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
import type { Division, Total, Weights } from "../weights/weights.ts";
import type { Activation } from "./activations.ts";
import { type Crossing, handingOn, takingOver } from "./crossings.ts";

/** `offset` is added to the weight: Gemma stores weights as their distance from 1. */
export function rmsNorm(
  weights: Weights,
  name: string,
  dims: number,
  eps: number,
  offset = 0,
): Norm {
  const stored = weights.tensor(`${name}.weight`, [dims]);
  const weight = offset === 0 ? stored : weights.computed(() => add(stored, offset));
  const norm = (x: MlxArray) => weights.device.rmsNorm(x, weight, eps);
  return Object.assign(norm, { weight, eps });
}

/** A norm that is no RMS norm: devices do not fuse it into products. */
export type AnyNorm = Norm | ((x: MlxArray) => MlxArray);

/** With the weight and the bias that the file has; `offset` is added to the weight. */
export function layerNorm(
  weights: Weights,
  name: string,
  dims: number,
  eps: number,
  offset = 0,
): AnyNorm {
  const [stored, bias] = ["weight", "bias"].map((part) =>
    weights.has(`${name}.${part}`) ? weights.tensor(`${name}.${part}`, [dims]) : undefined,
  );
  const weight = stored && offset !== 0 ? weights.computed(() => add(stored, offset)) : stored;
  return (x) => normed(x, weight, bias, eps);
}

/** An RMS norm over an axis of which this rank may have a part: of one of its groups, where each has a norm by itself. */
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
  const isOwn = weights.constant(Float32Array.from({ length: groups }, (_, i) => +(i === place)));
  const total = weights.totals(dims)!;
  return (x) => {
    const exact = astype(x, "float32");
    const all = sum(multiply(exact, exact), -1, true); // (T, 1)
    const own = dims.copies ? divide(all, dims.copies) : all;
    const squares = slice(total(multiply(own, isOwn)), 1, place, place + 1);
    const scale = power(add(divide(squares, width), eps), -0.5);
    return multiply(astype(multiply(exact, scale), x.dtype), weight);
  };
}

/** A layer norm without weights of its own. */
export const plainLayerNorm =
  (eps: number): AnyNorm =>
  (x) =>
    normed(x, undefined, undefined, eps);

/** Over heads of this size, without weights of its own. */
export function plainNorm(weights: Weights, headDim: number, eps: number): Norm {
  const norm = (x: MlxArray) => weights.device.rmsNorm(x, undefined, eps);
  const weight = weights.constant(new Float32Array(headDim).fill(1));
  return Object.assign(norm, { weight, eps });
}

/** Squeezes x into (-cap, cap). */
export function softCap(x: MlxArray, cap: number): MlxArray {
  return multiply(tanh(divide(x, cap)), cap);
}

/** What this rank has of an MLP's width. */
export function ownWidth(weights: Weights, name: string, hidden: number): Extent {
  return weights.divide(hidden, { inputOf: [`${name}.down_proj`] });
}

/**
 * down(gating(gate(x), up(x))), with both of them in one matrix where the file has them so. `own`: where the gating is
 * not element by element, the part of the width that it is made for.
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
  const gateUp = weights.has(`${joint}.weight`)
    ? weights.linear(joint, dims, [own, own])
    : weights.joined(joint, parts, dims, [own, own]);
  return joinedMlp(gateUp, weights.linear(`${name}.down_proj`, own, dims), gating);
}

/** With both halves from one product. */
function joinedMlp(gateUp: Linear, down: Linear, gating: Gating): Linear {
  return (x, { norm, residual } = {}) => down(gateUp(x, { norm, gating }), { residual });
}

/** down(activation(up(x))) */
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
 * x (T, D), chosen (T, K) -> (T, K, D): the output of each of a token's experts. Ranks have parts of each expert's
 * width: `total` then adds up what they make of tokens.
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
  return byExpert(down, dims, weights.totals(own), (x, rows, sorted) =>
    down(gateUp(x, rows, { gating, ...sorted }), rows, sorted),
  );
}

/** down(activation(up(x))) */
export function ungatedExpertMlps(
  weights: Weights,
  name: string,
  { experts, dims, hidden }: ExpertSizes,
  activation: (x: MlxArray) => MlxArray,
): ExpertMlps {
  const own = ownWidth(weights, name, hidden);
  const up = weights.experts(`${name}.up_proj`, experts, dims, own);
  const down = weights.experts(`${name}.down_proj`, experts, own, dims);
  return byExpert(down, dims, weights.totals(own), (x, rows, sorted) =>
    down(activation(up(x, rows, sorted)), rows, sorted),
  );
}

/** Many rows are computed in the order of their experts, where the device gains by it. */
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

/** Heads are those that this rank has: which of all they are is in `own`, where it has not all. */
export type AttentionSizes = {
  dims: number;
  heads: number;
  kvHeads: number;
  headDim: number;
  /** Of a head's values, where they have fewer features. */
  valueDim?: number | undefined;
  own?: { heads: Slice; kvHeads: Slice } | undefined;
};

/** Features of the rank's heads, `each` of a head. */
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
 * The heads of this rank: KV heads with all their queries, or some of the queries of one KV head that other ranks have
 * too; all of them where they cannot be divided so. `output`: the matrix that takes what heads make.
 */
export function ownHeads(
  weights: Weights,
  name: string,
  sizes: AttentionSizes,
  output = "o_proj",
): AttentionSizes {
  const { group } = weights;
  const { heads, kvHeads, valueDim: value = sizes.headDim } = sizes;
  if (!group) return sizes;
  const each = heads / kvHeads;
  if (!Number.isInteger(each)) return sizes;
  const isShared = kvHeads < group.size;
  const inputOf = [`${name}.${output}`];
  const features = weights.divide(
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

/** Which of fewer KV heads a rank has, and with how many other ranks: the first ranks have more of it for themselves. */
function sharedBy(kvHeads: number, { rank, size }: Ranks) {
  const first = Math.ceil(((rank + 1) * kvHeads) / size) - 1;
  const ranksFrom = (kvHead: number) => Math.floor((kvHead * size) / kvHeads);
  return { first, copies: ranksFrom(first + 1) - ranksFrom(first), place: rank - ranksFrom(first) };
}

/** Queries of a KV head, `each` features, are divided among the ranks that have it. */
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

/** x (T, dims) -> queries, keys and values side by side (T, (heads + 2 kvHeads) * D) */
export type Projection = (x: MlxArray, fused?: Pick<Fused, "norm">) => MlxArray;

/** These norms are over all heads at once. The file may have all three in one matrix. */
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
  const product = weights.has(`${joint}.weight`)
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

/** With q_norm and k_norm over all heads at once. */
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

/** With the step, of which it may ask for positions. */
export type HeadProjection = (x: MlxArray, fused: Pick<Fused, "norm">, step: Step) => MlxArray;

export type AttentionParts = {
  attention: AttentionOptions;
  rope?: Rope | undefined;
  project?: HeadProjection | undefined;
  /** What was attended, before it is projected back; beside it what attention took, and the norm that it has before. */
  afterwards?:
    | ((attended: MlxArray, x: MlxArray, fused: Pick<Fused, "norm">) => MlxArray)
    | undefined;
  /** Over each head by itself. */
  qNorm?: Norm | undefined;
  kNorm?: Norm | undefined;
  vNorm?: Norm | undefined;
  /** How many features go into o_proj, where they are not those of all heads. */
  outputs?: Extent | undefined;
  /** The state of an earlier layer, whose keys and values this one reads: it has none of its own. */
  shared?: KvState | undefined;
  /** Keys and values that another rank's layer has made: read as if they were its own. */
  taken?: Crossing | undefined;
  /** Where its own go, for other ranks' layers. */
  handsOn?: Crossing | undefined;
};

/** Of all tokens; `forRows`: of some of them alone, `rows` (R), where that is less work. What it keeps is of all. */
type OfTokens<Inputs extends unknown[]> = ((...inputs: Inputs) => MlxArray) & {
  forRows?: ((rows: MlxArray, ...inputs: Inputs) => MlxArray) | undefined;
};

/** Of what computes both: of all tokens where there are no `rows`. */
export function ofTokens<Inputs extends unknown[]>(
  compute: (rows: MlxArray | undefined, ...inputs: Inputs) => MlxArray,
) {
  const all = (...inputs: Inputs) => compute(undefined, ...inputs);
  return Object.assign(all, { forRows: compute });
}

/** Of all tokens where there are no `rows`. */
export function forRows<Inputs extends unknown[]>(
  block: OfTokens<Inputs>,
  rows: MlxArray | undefined,
  ...inputs: Inputs
): MlxArray {
  return (rows && block.forRows?.(rows, ...inputs)) ?? rowsOf(block(...inputs), rows);
}

/** Some of x (T, ...), or all. */
export function rowsOf(x: MlxArray, rows: MlxArray | undefined): MlxArray {
  return rows ? take(x, rows, 0) : x;
}

type AttentionInputs = [x: MlxArray, step: Step, fused?: Pick<Fused, "norm" | "residual">];

export type AttentionBlock = OfTokens<AttentionInputs>;

/** `again`: the same weights as another layer, with keys and values of its own. */
export type SharedBlock = AttentionBlock & { state: KvState; again(): SharedBlock };

/** Projects x to queries, keys and values, attends with RoPE applied, and projects back. */
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
  return { ...attention, sinks: weights.computed(() => slice(sinks, 0, first, first + count)) };
}

/** Opens what was attended to, as far as the layer's input says. */
export type OutputGate = {
  name: string;
  /** One for each head, and not one for each feature. */
  isPerHead?: boolean | undefined;
  /** In place of a sigmoid. */
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

/** x (T, heads * D) by gates (T, heads) or (T, heads * D) */
function opened(x: MlxArray, gates: MlxArray): MlxArray {
  const [tokens, width] = x.shape as [number, number];
  const heads = gates.shape[1]!;
  if (heads === width) return multiply(x, gates);
  const byHead = reshape(x, [tokens, heads, width / heads]);
  return reshape(multiply(byHead, expandDims(gates, -1)), [tokens, width]);
}

/** `input`: what the layer gets beside the hidden state, in models that have such. */
export type Block = OfTokens<[x: MlxArray, step: Step, input?: MlxArray]>;

/** The usual order: norm, attend, add; norm, compute, add. */
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
