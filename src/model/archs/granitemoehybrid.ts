// Granite 4: Granite with Mamba 2 in most layers, with or without experts.
import { z } from "zod";
import type { Linear } from "../../device/device.ts";
import { headsOf, parseConfig, StepLimits } from "../config.ts";
import { router, splitExperts } from "../experts.ts";
import { attentionBlock, expertMlps, gatedMlp, joinedMlp } from "../layers.ts";
import type { Model } from "../model.ts";
import { mamba2Mixer, normAfterGate } from "../recurrent-layers.ts";
import { makeRope, ropeOptions } from "../rope.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";
import { GraniteConfig, graniteDecoder } from "./granite.ts";

/** Those without such layers leave their sizes out. */
const size = z
  .int()
  .nullish()
  .transform((given) => given ?? 0);

export const GraniteExpertsConfig = GraniteConfig.extend({
  num_local_experts: size,
  num_experts_per_tok: z.int().nullish(),
});

const Config = GraniteExpertsConfig.extend({
  layer_types: z.array(z.enum(["mamba", "attention"])),
  shared_intermediate_size: z.int().nullish(),
  mamba_n_heads: size,
  mamba_d_head: size,
  mamba_d_state: size,
  mamba_d_conv: size,
  mamba_n_groups: size,
  time_step_limit: StepLimits.nullish(),
  position_embedding_type: z.string().nullish(),
});
type Config = z.infer<typeof Config>;

export function graniteMoeHybrid(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size, position_embedding_type, layer_types } = parsed;
  const sizes = { dims, ...headsOf(parsed) };
  const rope =
    position_embedding_type === "nope"
      ? undefined
      : makeRope(weights, ropeOptions(parsed, sizes.headDim));
  const attention = { scale: parsed.attention_multiplier };
  return graniteDecoder(parsed, weights, (name, layer, states) => {
    const mix =
      layer_types[layer] === "mamba"
        ? mamba(parsed, weights, `${name}.mamba`, states)
        : attentionBlock(weights, `${name}.self_attn`, states, sizes, { rope, attention });
    if (parsed.num_local_experts > 0) return { mix, mlp: sparseMlp(parsed, weights, name) };
    // The authors' files have the one MLP as if it stood beside experts.
    const mlp = weights.has(`${name}.shared_mlp.input_linear.weight`)
      ? sharedMlp(parsed, weights, name)
      : gatedMlp(weights, `${name}.mlp`, dims, intermediate_size);
    return { mix, mlp };
  });
}

function mamba(config: Config, weights: Weights, name: string, states: LayerStates) {
  const { mamba_n_heads: heads, mamba_d_head: headDim, rms_norm_eps: eps } = config;
  const sizes = {
    dims: config.hidden_size,
    heads,
    headDim,
    groups: config.mamba_n_groups,
    stateSize: config.mamba_d_state,
    taps: config.mamba_d_conv,
    limits: config.time_step_limit ?? ([0.001, 100] as const),
  };
  const gatedNorm = normAfterGate(weights, `${name}.norm`, heads * headDim, eps);
  return mamba2Mixer(weights, name, states, sizes, gatedNorm);
}

/** Experts, and one more that all tokens go through. */
function sparseMlp(config: Config, weights: Weights, name: string): Linear {
  const experts = graniteExperts(config, weights, `${name}.block_sparse_moe`);
  const shared = sharedMlp(config, weights, name);
  return (input, { norm, residual } = {}) => {
    const x = norm ? norm(input) : input;
    return shared(x, { residual: experts(x, { residual }) });
  };
}

export function graniteExperts(
  config: Pick<
    z.infer<typeof GraniteExpertsConfig>,
    "hidden_size" | "intermediate_size" | "num_local_experts" | "num_experts_per_tok"
  >,
  weights: Weights,
  sparse: string,
): Linear {
  const { hidden_size: dims, intermediate_size: hidden } = config;
  const [experts, each] = [config.num_local_experts, config.num_experts_per_tok ?? 1];
  if (weights.has(`${sparse}.input_linear.weight`)) {
    splitExperts(weights, `${sparse}.input_linear.weight`, `${sparse}.switch_mlp`);
    weights.rename({ [`${sparse}.output_linear.`]: `${sparse}.switch_mlp.down_proj.` });
  }
  const sizes = { experts, dims, hidden };
  const route = router(weights, `${sparse}.router.layer`, sizes, {
    each,
    scores: "softmax",
    isNormalized: true,
    scale: 1,
  });
  const mlps = expertMlps(weights, `${sparse}.switch_mlp`, sizes);
  return (input, { norm, residual } = {}) => {
    const x = norm ? norm(input) : input;
    const { chosen, shares } = route(x);
    return weights.device.combine(mlps(x, chosen), shares, residual);
  };
}

function sharedMlp(config: Config, weights: Weights, layer: string): Linear {
  const { hidden_size: dims, intermediate_size } = config;
  const [name, hidden] = [
    `${layer}.shared_mlp`,
    config.shared_intermediate_size ?? intermediate_size,
  ];
  // GGUF files have both halves apart.
  if (weights.has(`${name}.gate_proj.weight`)) return gatedMlp(weights, name, dims, hidden);
  const gateUp = weights.linear(`${name}.input_linear`, dims, 2 * hidden);
  const down = weights.linear(`${name}.output_linear`, hidden, dims);
  return joinedMlp(gateUp, down, "swiglu");
}
