// PLaMo 2: a kind of Mamba in every other layer, attention in the others, and norms before and behind both and MLPs.
import { z } from "zod";
import type { MlxArray } from "../../mlx/array.ts";
import { add, concatenate, multiply, slice, split } from "../../mlx/ops.ts";
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import { decoder } from "../decoder.ts";
import { changedHeads } from "../head-changes.ts";
import {
  type AttentionBlock,
  type AttentionSizes,
  attentionBlock,
  type HeadProjection,
  joinedMlp,
  projection,
  rmsNorm,
} from "../layers.ts";
import type { Model } from "../model.ts";
import { convolution, decayRule } from "../recurrent-layers.ts";
import { makeRope } from "../rope.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";

const count = z.int().positive();

const Config = BaseConfig.extend({
  hidden_size_per_head: count.default(128),
  attention_window_size: count.default(2048),
  full_attention_idx: z.array(z.int()).nullish(),
  mamba_d_state: count.default(64),
  mamba_d_conv: count.default(4),
  mamba_num_heads: count.default(64),
  mamba_step: z.int().min(2).default(2),
  mamba_enabled: z.boolean().default(true),
  tie_word_embeddings: z.boolean().default(true),
  /** GGUF files keep norms as they are used: their configuration says 0. */
  norm_offset: z.number().default(1),
});
type Config = z.infer<typeof Config>;

/** Of the norms of queries and keys, whatever the configuration says of the others. */
const HEAD_EPS = 1e-6;

export function plamo2(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size: hidden, rms_norm_eps: eps } = parsed;
  const sizes = { dims, ...headsOf({ ...parsed, head_dim: parsed.hidden_size_per_head }) };
  const rope = makeRope(weights, { dims: sizes.headDim, base: 10_000 });
  weights.rename({ "model.layers.layers.": "model.layers." });
  const makeNorm = (name: string, offset: number) =>
    rmsNorm(weights, name, dims, eps, offset * parsed.norm_offset);
  return decoder(
    parsed,
    weights,
    (name, layer, states) => {
      const mixer = `${name}.mixer`;
      const isFull = parsed.full_attention_idx?.includes(layer);
      const mix = isMamba(parsed, layer)
        ? mamba(parsed, weights, mixer, states)
        : attentionBlock(weights, mixer, states, sizes, {
            rope,
            project: normedHeads(weights, mixer, sizes),
            attention: {
              scale: sizes.headDim ** -0.5,
              window: isFull ? undefined : parsed.attention_window_size,
            },
          });
      const gateUp = weights.linear(`${name}.mlp.gate_up_proj`, dims, 2 * hidden);
      const down = weights.linear(`${name}.mlp.down_proj`, hidden, dims);
      const mlp = joinedMlp(gateUp, down, "swiglu");
      const preMixer = makeNorm(`${name}.pre_mixer_norm`, 1);
      const postMixer = makeNorm(`${name}.post_mixer_norm`, 1 / 5);
      const preMlp = makeNorm(`${name}.pre_mlp_norm`, 1);
      const postMlp = makeNorm(`${name}.post_mlp_norm`, 1 / 5 ** 1.5);
      return (x, step) => {
        const h = add(x, postMixer(mix(x, step, { norm: preMixer })));
        return add(h, postMlp(mlp(h, { norm: preMlp })));
      };
    },
    { norm: makeNorm("model.norm", 1) },
  );
}

function isMamba({ mamba_enabled, mamba_step: step, num_hidden_layers }: Config, layer: number) {
  if (!mamba_enabled) return false;
  const middle = Math.floor(step / 2);
  if (num_hidden_layers <= middle) return layer !== num_hidden_layers - 1;
  return layer % step !== middle;
}

/** Norms over each head of queries and keys, with a weight for each feature of all heads. */
function normedHeads(weights: Weights, name: string, sizes: AttentionSizes): HeadProjection {
  const { heads, kvHeads, headDim } = sizes;
  const norm = (part: string, count: number) => {
    const weight = weights.tensor(`${name}.${part}_weight`, [count, headDim]);
    return (x: MlxArray) => multiply(weights.device.rmsNorm(x, undefined, HEAD_EPS), weight);
  };
  const [qNorm, kNorm] = [norm("q", heads), norm("k", kvHeads)];
  return changedHeads(projection(weights, name, sizes), sizes, ({ q, k }) => {
    return { q: qNorm(q), k: kNorm(k) };
  });
}

/** Keys, queries and steps are products of the values, behind the convolution. */
function mamba(
  config: Config,
  weights: Weights,
  name: string,
  states: LayerStates,
): AttentionBlock {
  const { hidden_size: dims, mamba_num_heads: heads, hidden_size_per_head: headDim } = config;
  const { mamba_d_state: stateSize, mamba_d_conv: taps, rms_norm_eps: eps } = config;
  const [channels, rank] = [heads * headDim, Math.max(64, Math.floor(dims / 16))];
  arrangeHalves(weights, `${name}.in_proj`, heads, headDim);
  const project = weights.linear(`${name}.in_proj`, dims, 2 * channels);
  const convolved = {
    ...convolution(weights, `${name}.conv1d`, channels, taps, "silu"),
    column: channels,
  };
  const narrow = weights.linear(`${name}.bcdt_proj`, channels, 2 * stateSize + rank);
  const makeNorm = (part: string, size: number) => {
    const weight = weights.tensor(`${name}.${part}_norm_weight`, [size]);
    return (x: MlxArray) => weights.device.rmsNorm(x, weight, eps);
  };
  const [keyNorm, queryNorm] = [makeNorm("B", stateSize), makeNorm("C", stateSize)];
  const stepNorm = makeNorm("dt", rank);
  const toSteps = weights.linear(`${name}.dt_proj`, rank, heads);
  const columns = { ...decayRule(weights, name, heads), steps: 0 };
  const outProj = weights.linear(`${name}.out_proj`, channels, dims);
  const inputs = states.slot(taps - 1, channels);
  const state = states.slot(heads, headDim, stateSize);
  const scan = {
    keyHeads: 1,
    columns: { values: 0, keys: channels, queries: channels + stateSize },
    deltaRule: false,
    skip: weights.tensor(`${name}.D`, [heads], "float32"),
  };
  return (x, step, { norm, residual } = {}) => {
    const raw = project(x, { norm });
    const mixed = step.convolve(inputs, raw, convolved);
    const parts = split(narrow(mixed), [stateSize, 2 * stateSize]);
    const [keys, queries, steps] = parts as [MlxArray, MlxArray, MlxArray];
    const all = concatenate([mixed, keyNorm(keys), queryNorm(queries)], -1);
    const gates = { raw: toSteps(stepNorm(steps)), columns };
    const y = step.scan(state, { x: all, gates }, scan);
    const gate = slice(raw, 1, 0, channels);
    return outProj(weights.device.gate("swiglu", gate, y), { residual });
  };
}

/** The file has the gate and the values of each head side by side; ours, all gates first. */
function arrangeHalves(weights: Weights, name: string, heads: number, headDim: number): void {
  const runs = [0, 1].flatMap((half) =>
    Array.from({ length: heads }, (_, head) => {
      return { first: (2 * head + half) * headDim, count: headDim };
    }),
  );
  weights.pick(name, `${name}_halves`, runs);
  weights.rename({ [`${name}_halves.`]: `${name}.` });
}
