// RecurrentGemma (Griffin): a gated linear recurrence of each channel in most layers, attention within a window in the
// others.
import { z } from "zod";
import type { MlxArray } from "../../mlx/array.ts";
import {
  add,
  astype,
  concatenate,
  exp,
  expandDims,
  lessEqual,
  logAddExp,
  maximum,
  multiply,
  negative,
  power,
  reshape,
  sigmoid,
  where,
  zeros,
} from "../../mlx/ops.ts";
import { activationOf } from "../activations.ts";
import { count, flag, headsOf, real } from "../config.ts";
import { type ConfigOf, family } from "../family.ts";
import type { AttentionBlock } from "../layers.ts";
import type { Step } from "../model.ts";
import { convolution } from "../recurrent-layers.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";

const kinds = z.array(z.enum(["recurrent", "attention"])).min(1);

const keys = {
  conv1d_width: count.default(4),
  attention_window_size: count.default(2048),
  logits_soft_cap: real.nullish(),
  embeddings_scale_by_sqrt_dim: flag.default(true),
  /** One after the other, again and again; some configurations have an underscore before. */
  block_types: kinds.nullish(),
  _block_types: kinds.nullish(),
};
type Config = ConfigOf<typeof keys>;

export const recurrentGemma = family({
  config: keys,
  design: (config, weights) => {
    const { block_types, _block_types } = config;
    const types = block_types ?? _block_types ?? ["recurrent", "recurrent", "attention"];
    return {
      config: { sliding_window: config.attention_window_size },
      normOffset: 1,
      norms: { attention: "temporal_pre_norm", mlp: "channel_pre_norm" },
      attentionName: "temporal_block",
      slides: () => true,
      rotaryDims: headsOf(config).headDim / 2,
      mix: (name, layer, states) =>
        types[layer % types.length] === "attention"
          ? undefined
          : recurrence(config, weights, name, states),
      mlpName: "mlp_block",
      hidden: config.intermediate_size / 2,
      gating: "geglu",
      embeddingScale: config.embeddings_scale_by_sqrt_dim ? config.hidden_size ** 0.5 : 1,
      logitCap: config.logits_soft_cap,
    };
  },
});

/** Kernels read as many key features at once: the state of a channel is the first of them. */
const KEYS = 16;

function recurrence(
  config: Config,
  weights: Weights,
  name: string,
  states: LayerStates,
): AttentionBlock {
  const { hidden_size: dims, conv1d_width: taps } = config;
  const gate = weights.linear(`${name}.linear_y`, dims, dims);
  const project = weights.linear(`${name}.linear_x`, dims, dims);
  const outProj = weights.linear(`${name}.linear_out`, dims, dims);
  const gelu = activationOf("gelu_pytorch_tanh", "hidden_activation");
  const convolved = convolution(weights, `${name}.conv_1d`, dims, taps);
  const inputs = states.slot(taps - 1, dims);
  const recur = gatedRecurrence(config, weights, `${name}.rg_lru`, states);
  return (input, step, { norm, residual } = {}) => {
    const x = norm ? norm(input) : input;
    const read = recur(step.convolve(inputs, project(x), convolved), step);
    return outProj(multiply(read, gelu(gate(x))), { residual });
  };
}

/** state = decay * state + sqrt(1 - decay^2) * opened input, of each channel; both gates are made of the input. */
function gatedRecurrence(config: Config, weights: Weights, name: string, states: LayerStates) {
  const { hidden_size: dims, num_attention_heads: heads } = config;
  const headDim = dims / heads;
  const gateOf = (part: string) => {
    weights.rename({ [`${name}.${part}_weight`]: `${name}.${part}.weight` });
    const bias = weights.tensor(`${name}.${part}_bias`, [heads, headDim]);
    const product = weights.byHead(`${name}.${part}`, heads, headDim, headDim, {
      isTransposed: true,
    });
    return (x: MlxArray) =>
      sigmoid(add(product({ rows: x, first: 0, stride: headDim }), reshape(bias, [dims])));
  };
  const [inputGate, recurrentGate] = [gateOf("input_gate"), gateOf("recurrent_gate")];
  const stored = weights.tensor(`${name}.recurrent_param`, [dims], "float32");
  const rate = weights.computed(() => multiply(logAddExp(stored, 0), -8));
  const unit = weights.constant(Float32Array.from({ length: KEYS }, (_, i) => (i === 0 ? 1 : 0)));
  const state = states.slot(dims, 1, KEYS);
  const scan = {
    keyHeads: 1,
    columns: { values: 0, keys: dims, queries: dims },
    deltaRule: false,
  };
  return (x: MlxArray, step: Step) => {
    const powers = multiply(astype(recurrentGate(x), "float32"), rate); // (T, dims)
    const rest = maximum(add(negative(exp(multiply(powers, 2))), 1), 0);
    // There is nothing before the first token of a sequence.
    const isFirst = expandDims(lessEqual(step.positions(), 0), 1);
    const share = where(isFirst, add(zeros(rest.shape), 1), power(rest, 0.5));
    const taken = multiply(multiply(x, inputGate(x)), astype(share, x.dtype));
    const units = add(zeros([x.shape[0]!, 1], x.dtype), astype(unit, x.dtype));
    const gates = { decays: exp(powers), betas: add(zeros(powers.shape), 1) };
    return step.scan(state, { x: concatenate([taken, units], -1), gates }, scan);
  };
}
