// Ring 2 linear: attention whose heads forget at a fixed rate in most layers, softmax attention in the others.
import { z } from "zod";
import type { MlxArray } from "../../mlx/array.ts";
import { add, concatenate, multiply, reshape, sigmoid, split, zeros } from "../../mlx/ops.ts";
import { headsOf, parseConfig } from "../config.ts";
import type { AttentionBlock } from "../layers.ts";
import type { Model } from "../model.ts";
import { groupedNorm } from "../recurrent-layers.ts";
import { makeRope, ropeOptions, rotated } from "../rope.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";
import { BailingConfig, bailingAttention, bailingDecoder, headNorms } from "./bailing-moe.ts";

const count = z.int().positive();

export const LinearConfig = BailingConfig.extend({
  /** Of so many layers the last has softmax attention, and so have those behind the last whole group. */
  layer_group_size: count,
  /** Groups of the norm behind the others' attention. */
  group_norm_size: count,
});
export type LinearConfig = z.infer<typeof LinearConfig>;

export function bailingMoeLinear(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(LinearConfig, config);
  const { num_hidden_layers: layers } = parsed;
  const attention = bailingAttention(parsed, weights);
  return bailingDecoder(parsed, weights, (name, layer, states) =>
    isGlobal(parsed, layer)
      ? attention(name, layer, states)
      : fadingAttention(parsed, weights, name, states, 1 - Math.max(0, layer - 1) / (layers - 1)),
  );
}

export function isGlobal(
  {
    layer_group_size: size,
    num_hidden_layers,
  }: Pick<LinearConfig, "layer_group_size" | "num_hidden_layers">,
  layer: number,
): boolean {
  return (layer + 1) % size === 0 || layer >= num_hidden_layers - (num_hidden_layers % size);
}

/** Linear attention with a decay for each head; `pace` is smaller in later layers. */
export function fadingAttention(
  config: LinearConfig,
  weights: Weights,
  name: string,
  states: LayerStates,
  pace: number,
): AttentionBlock {
  const { hidden_size: dims, rms_norm_eps: eps, group_norm_size, use_qk_norm } = config;
  const { heads, headDim } = headsOf({ ...config, num_key_value_heads: undefined });
  const width = heads * headDim;
  const rope = makeRope(
    weights,
    ropeOptions(config, Math.floor(headDim * config.partial_rotary_factor)),
  );
  const project = weights.linear(`${name}.qkv_proj`, dims, 3 * width);
  const { qNorm, kNorm } = headNorms(weights, name, { headDim }, use_qk_norm ? eps : undefined);
  const norm = groupedNorm(weights, `${name}.g_norm`, width, eps, group_norm_size);
  const gate = weights.linear(`${name}.g_proj`, dims, width);
  const oProj = weights.linear(`${name}.o_proj`, width, dims);
  const decays = weights.constant(
    Float32Array.from(slopes(heads), (slope) => Math.exp(-slope * (pace + 1e-5))),
  );
  // What is read is scaled: what is written may as well be.
  const betas = weights.constant(new Float32Array(heads).fill(headDim ** -0.5));
  const state = states.slot(heads, headDim, headDim);
  const scan = {
    keyHeads: heads,
    columns: { queries: 0, keys: width, values: 2 * width },
    deltaRule: false,
  };
  return (input, step, { norm: before, residual } = {}) => {
    const x = before ? before(input) : input;
    const [q, k, v] = split(project(x), 3) as [MlxArray, MlxArray, MlxArray];
    const placed = (part: MlxArray, headNorm: typeof qNorm) => {
      const apart = reshape(part, [-1, heads, headDim]);
      const turned = rotated(headNorm ? headNorm(apart) : apart, rope, step.positions());
      return reshape(turned, [-1, width]);
    };
    const rows = concatenate([placed(q, qNorm), placed(k, kNorm), v], -1);
    const none = zeros([x.shape[0]!, 1]);
    const gates = { decays: add(none, decays), betas: add(none, betas) }; // (T, heads)
    const read = step.scan(state, { x: rows, gates }, scan);
    return oProj(multiply(norm(read), sigmoid(gate(x))), { residual });
  };
}

/** As ALiBi has them: a geometric series, and where heads are no power of two, some of the next one. */
function slopes(heads: number): number[] {
  const series = (count: number) =>
    Array.from({ length: count }, (_, i) => 2 ** (-(2 ** -(Math.log2(count) - 3)) * (i + 1)));
  const whole = 2 ** Math.floor(Math.log2(heads));
  const between = series(2 * whole).filter((_, i) => i % 2 === 0);
  return [...series(whole), ...between.slice(0, heads - whole)];
}
