// What the architectures have in common.
import type { ExpertLinear, ExpertProduct, Fused, Gating, Linear, Norm } from "../device/device.ts";
import { LoadError } from "../files/load-error.ts";
import type { MlxArray } from "../mlx/array.ts";
import { layerNorm as normed } from "../mlx/fast.ts";
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
  reshape,
  sigmoid,
  split,
  take,
  tanh,
} from "../mlx/ops.ts";
import type { Activation } from "./activations.ts";
import type { AttentionOptions, Step } from "./model.ts";
import type { Rope } from "./rope.ts";
import type { KvState, LayerStates } from "./states.ts";
import type { Weights } from "./weights.ts";

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

/** down(gating(gate(x), up(x))), with both of them in one matrix where the file has them so. */
export function gatedMlp(
  weights: Weights,
  name: string,
  dims: number,
  hidden: number,
  gating: Gating = "swiglu",
): Linear {
  const [joint, parts] = [`${name}.gate_up_proj`, [`${name}.gate_proj`, `${name}.up_proj`]];
  const gateUp = weights.has(`${joint}.weight`)
    ? weights.linear(joint, dims, 2 * hidden)
    : weights.joined(joint, parts, dims, [hidden, hidden]);
  return joinedMlp(gateUp, weights.linear(`${name}.down_proj`, hidden, dims), gating);
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
  const up = weights.linear(`${name}.up_proj`, dims, hidden);
  const down = weights.linear(`${name}.down_proj`, hidden, dims);
  return (x, { norm, residual } = {}) => down(activation(up(x, { norm })), { residual });
}

export type ExpertSizes = { experts: number; dims: number; hidden: number };

/** x (T, D), chosen (T, K) -> (T, K, D): the output of each of a token's experts. */
export type ExpertMlps = (x: MlxArray, chosen: MlxArray) => MlxArray;

export function expertMlps(
  weights: Weights,
  name: string,
  { experts, dims, hidden }: ExpertSizes,
  gating: Gating = "swiglu",
): ExpertMlps {
  const parts = [`${name}.gate_proj`, `${name}.up_proj`];
  const gateUp = weights.joinedExperts(`${name}.gate_up_proj`, parts, experts, dims, hidden);
  const down = weights.experts(`${name}.down_proj`, experts, hidden, dims);
  return byExpert(down, dims, (x, rows, sorted) =>
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
  const up = weights.experts(`${name}.up_proj`, experts, dims, hidden);
  const down = weights.experts(`${name}.down_proj`, experts, hidden, dims);
  return byExpert(down, dims, (x, rows, sorted) =>
    down(activation(up(x, rows, sorted)), rows, sorted),
  );
}

/** Many rows are computed in the order of their experts, where the device gains by it. */
function byExpert({ sortedRows }: ExpertLinear, dims: number, mlp: ExpertProduct): ExpertMlps {
  return (x, chosen) => {
    const [tokens, each] = chosen.shape as [number, number];
    const rows = flatten(chosen); // (T * K)
    if (rows.size < sortedRows) return reshape(mlp(x, rows), [tokens, each, dims]);
    const order = argsort(rows);
    const ordered = take(x, floorDivide(order, each)); // (T * K, D)
    const made = mlp(ordered, take(rows, order), { sorted: true });
    return reshape(take(made, argsort(order)), [tokens, each, dims]);
  };
}

export type AttentionSizes = { dims: number; heads: number; kvHeads: number; headDim: number };

/** x (T, dims) -> queries, keys and values side by side (T, (heads + 2 kvHeads) * D) */
export type Projection = (x: MlxArray, fused?: Pick<Fused, "norm">) => MlxArray;

/** These norms are over all heads at once. The file may have all three in one matrix. */
export function projection(
  weights: Weights,
  name: string,
  { dims, heads, kvHeads, headDim }: AttentionSizes,
  norms: { q?: Norm; k?: Norm } = {},
): Projection {
  const outputs = [heads * headDim, kvHeads * headDim, kvHeads * headDim] as const;
  const parts = ["q_proj", "k_proj", "v_proj"].map((part) => `${name}.${part}`);
  const joint = `${name}.qkv_proj`;
  const product = weights.has(`${joint}.weight`)
    ? weights.linear(joint, dims, outputs[0] + 2 * outputs[1])
    : weights.joined(joint, parts, dims, outputs);
  const { q: qNorm, k: kNorm } = norms;
  if (!qNorm || !kNorm) return product;
  return (x, fused) => {
    const [q, k, v] = split(product(x, fused), [outputs[0], outputs[0] + outputs[1]]);
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
  const { heads, kvHeads, headDim } = sizes;
  return projection(weights, name, sizes, {
    q: rmsNorm(weights, `${name}.q_norm`, heads * headDim, eps),
    k: rmsNorm(weights, `${name}.k_norm`, kvHeads * headDim, eps),
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
  outputs?: number | undefined;
  /** The state of an earlier layer, whose keys and values this one reads: it has none of its own. */
  shared?: KvState | undefined;
};

export type AttentionBlock = (
  x: MlxArray,
  step: Step,
  fused?: Pick<Fused, "norm" | "residual">,
) => MlxArray;

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
  const { rope, qNorm, kNorm, vNorm, attention, shared, afterwards } = parts;
  const width = sizes.heads * sizes.headDim;
  if (rope && rope.dims > sizes.headDim) {
    const features = `${rope.dims} features of heads that have ${sizes.headDim}`;
    throw new LoadError(`config.json: RoPE cannot rotate ${features}`);
  }
  const project =
    parts.project ??
    (shared
      ? weights.linear(`${name}.q_proj`, sizes.dims, width)
      : projection(weights, name, sizes));
  const oProj = weights.linear(`${name}.o_proj`, parts.outputs ?? width, sizes.dims);
  const heads = { ...sizes, qNorm, kNorm, vNorm, rope, sharesKv: shared !== undefined };
  const over = (state: KvState): SharedBlock => {
    const block: AttentionBlock = (x, step, { norm, residual } = {}) => {
      const qkv = project(x, { norm }, step);
      const attended = step.attend(state, qkv, heads, attention);
      return oProj(afterwards ? afterwards(attended, x, { norm }) : attended, { residual });
    };
    return Object.assign(block, { state, again });
  };
  const again = () => over(states.kv({ ...sizes, window: attention.window }));
  return shared ? over(shared) : again();
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
  { dims, heads, headDim }: Omit<AttentionSizes, "kvHeads">,
  { name: part, isPerHead = false, open = sigmoid }: OutputGate,
): NonNullable<AttentionParts["afterwards"]> {
  const gate = weights.linear(`${name}.${part}`, dims, isPerHead ? heads : heads * headDim);
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
export type Block = (x: MlxArray, step: Step, input?: MlxArray) => MlxArray;

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
