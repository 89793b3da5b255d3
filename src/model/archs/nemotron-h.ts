// Nemotron H: one thing a layer, as its pattern says: Mamba 2, attention, an MLP or experts.
import { z } from "zod";
import type { Linear } from "../../device/device.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { add, maximum, multiply } from "../../mlx/ops.ts";
import { BaseConfig, headsOf, parseConfig, StepLimits } from "../config.ts";
import { decoder } from "../decoder.ts";
import { router, stackExperts } from "../experts.ts";
import { type AttentionBlock, attentionBlock, rmsNorm, ungatedExpertMlps } from "../layers.ts";
import type { Model } from "../model.ts";
import { mamba2Mixer, normAfterGate } from "../recurrent-layers.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";
import { nameBackbone } from "./mamba2.ts";

const count = z.int().positive();

const Config = BaseConfig.omit({ num_hidden_layers: true })
  .extend({
    /** A letter a layer. */
    hybrid_override_pattern: z.union([z.string(), z.array(z.string())]).nullish(),
    /** The same in words. */
    layers_block_type: z.array(z.string()).nullish(),
    layer_types: z.array(z.string()).nullish(),
    layer_norm_epsilon: z.number().positive().default(1e-5),
    mamba_num_heads: count,
    mamba_head_dim: count,
    ssm_state_size: count,
    conv_kernel: count,
    n_groups: count,
    time_step_limit: StepLimits.nullish(),
    n_routed_experts: z.int().nullish(),
    n_shared_experts: z.int().nullish(),
    num_experts_per_tok: z.int().nullish(),
    moe_intermediate_size: z.int().nullish(),
    moe_shared_expert_intermediate_size: z.int().nullish(),
    /** Of what experts take, if they do not take the hidden state itself. */
    moe_latent_size: z.int().nullish(),
    n_group: z.int().nullish(),
    topk_group: z.int().nullish(),
    norm_topk_prob: z.boolean().nullish(),
    routed_scaling_factor: z.number().nullish(),
  })
  .transform(({ hybrid_override_pattern, layers_block_type, layer_types, ...rest }) => ({
    ...rest,
    kinds: hybrid_override_pattern
      ? [...hybrid_override_pattern].map((letter) => letters[letter])
      : (layers_block_type ?? layer_types ?? []).map((word) => words[word]),
  }))
  .refine(({ kinds }) => kinds.length > 0 && !kinds.includes(undefined), {
    path: ["hybrid_override_pattern"],
    error: "expected a letter a layer, of M, *, - and E",
  });
type Config = z.infer<typeof Config>;

type Kind = "mamba" | "attention" | "mlp" | "experts";

const letters: Partial<Record<string, Kind>> = {
  M: "mamba",
  "*": "attention",
  "-": "mlp",
  E: "experts",
};

const words: Partial<Record<string, Kind>> = {
  mamba: "mamba",
  conv: "mamba",
  linear_attention: "mamba",
  attention: "attention",
  full_attention: "attention",
  mlp: "mlp",
  moe: "experts",
};

export function nemotronH(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, layer_norm_epsilon: eps, kinds } = parsed;
  nameBackbone(weights);
  return decoder(
    { ...parsed, num_hidden_layers: kinds.length, rms_norm_eps: eps },
    weights,
    (name, layer, states) => {
      const norm = rmsNorm(weights, `${name}.norm`, dims, eps);
      const mix = makeMixer(parsed, weights, `${name}.mixer`, kinds[layer]!, states);
      return (x, step) => mix(x, step, { norm, residual: x });
    },
    { ignored: /^mtp\./ },
  );
}

function makeMixer(
  config: Config,
  weights: Weights,
  name: string,
  kind: Kind,
  states: LayerStates,
): AttentionBlock {
  const { hidden_size: dims, intermediate_size } = config;
  if (kind === "mamba") return mamba(config, weights, name, states);
  if (kind === "attention") {
    const sizes = { dims, ...headsOf(config) };
    const attention = { scale: sizes.headDim ** -0.5 };
    return attentionBlock(weights, name, states, sizes, { attention });
  }
  const mlp =
    kind === "mlp"
      ? reluMlp(weights, name, dims, intermediate_size)
      : sparseMlp(config, weights, name);
  return (x, _, fused) => mlp(x, fused);
}

function mamba(config: Config, weights: Weights, name: string, states: LayerStates) {
  const { mamba_num_heads: heads, mamba_head_dim: headDim, n_groups: groups } = config;
  const sizes = {
    dims: config.hidden_size,
    heads,
    headDim,
    groups,
    stateSize: config.ssm_state_size,
    taps: config.conv_kernel,
    limits: config.time_step_limit ?? ([0, Infinity] as const),
  };
  const eps = config.layer_norm_epsilon;
  const gatedNorm = normAfterGate(weights, `${name}.norm`, heads * headDim, eps, groups);
  return mamba2Mixer(weights, name, states, sizes, gatedNorm);
}

function squaredRelu(x: MlxArray): MlxArray {
  const positive = maximum(x, 0);
  return multiply(positive, positive);
}

function reluMlp(weights: Weights, name: string, dims: number, hidden: number): Linear {
  const up = weights.linear(`${name}.up_proj`, dims, hidden);
  const down = weights.linear(`${name}.down_proj`, hidden, dims);
  return (x, { norm, residual } = {}) => down(squaredRelu(up(x, { norm })), { residual });
}

/** Experts, of a smaller vector in some models, and one more that all tokens go through. */
function sparseMlp(config: Config, weights: Weights, name: string): Linear {
  const { hidden_size: dims, intermediate_size } = config;
  const [experts, latent] = [config.n_routed_experts ?? 1, config.moe_latent_size ?? undefined];
  stackExperts(weights, name, experts, { up_proj: "up_proj", down_proj: "down_proj" });
  weights.rename({
    [`${name}.switch_mlp.fc1.`]: `${name}.switch_mlp.up_proj.`,
    [`${name}.switch_mlp.fc2.`]: `${name}.switch_mlp.down_proj.`,
  });
  const sizes = {
    experts,
    dims: latent ?? dims,
    hidden: config.moe_intermediate_size ?? intermediate_size,
  };
  const mlps = ungatedExpertMlps(weights, `${name}.switch_mlp`, sizes, squaredRelu);
  const into = latent && weights.linear(`${name}.fc1_latent_proj`, dims, latent);
  const back = latent && weights.linear(`${name}.fc2_latent_proj`, latent, dims);
  const sharedSize = config.moe_shared_expert_intermediate_size ?? intermediate_size;
  const shared = config.n_shared_experts
    ? reluMlp(weights, `${name}.shared_experts`, dims, sharedSize)
    : undefined;
  const count = config.n_group ?? 1;
  const route = router(
    weights,
    `${name}.gate`,
    { experts, dims },
    {
      each: config.num_experts_per_tok ?? 1,
      scores: "sigmoid",
      correction: `${name}.gate.e_score_correction_bias`,
      groups: { count, kept: config.topk_group ?? count, best: 2 },
      isNormalized: config.norm_topk_prob ?? false,
      scale: config.routed_scaling_factor ?? 1,
    },
  );
  return (input, { norm, residual } = {}) => {
    const x = norm ? norm(input) : input;
    const { chosen, shares } = route(x);
    const mixed = weights.device.combine(mlps(into ? into(x) : x, chosen), shares);
    const made = back ? back(mixed) : mixed;
    if (shared) return add(shared(x, { residual }), made);
    return residual ? add(residual, made) : made;
  };
}
