// Kimi K3: Kimi Linear with experts of a smaller vector, and layers that take a mixture of what earlier ones have made
// in place of its sum. Of files that also see, the part that reads and writes text.
import { z } from "zod";
import type { Gating, Linear } from "../../device/device.ts";
import type { MlxArray } from "../../mlx/array.ts";
import {
  add,
  astype,
  concatenate,
  exp,
  expandDims,
  logAddExp,
  multiply,
  negative,
  reshape,
  sigmoid,
  softmax,
  split,
  sum,
  tanh,
} from "../../mlx/ops.ts";
import { parseConfig } from "../config.ts";
import { decoder } from "../decoder.ts";
import { deltaAttention, featureRates } from "../delta-attention.ts";
import { router, stackExperts } from "../experts.ts";
import { latentAttention } from "../latent-layers.ts";
import { type AttentionBlock, expertMlps, gatedMlp, preNormBlock, rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";
import { LATENT_EPS } from "./deepseek-v2.ts";
import { KimiLinearConfig, latentSizes } from "./kimi-linear.ts";

const count = z.int().positive();

const Config = KimiLinearConfig.extend({
  linear_attn_config: KimiLinearConfig.shape.linear_attn_config.extend({
    /** Of the logarithm of a decay. */
    gate_lower_bound: z.number().negative().nullish(),
    use_full_rank_gate: z.boolean().default(false),
  }),
  hidden_act: z.literal("situ").default("situ"),
  activation_situ_beta: z.number().nullish(),
  activation_situ_linear_beta: z.number().nullish(),
  /** So many layers add to one sum, which later ones mix; all to one where there is none. */
  attn_res_block_size: count.nullish(),
  q_lora_rank: count.nullish(),
  mla_use_nope: z.literal(true).default(true),
  mla_use_output_gate: z.boolean().default(false),
  moe_router_activation_func: z.literal("sigmoid").default("sigmoid"),
  routed_expert_hidden_size: count.nullish(),
  latent_moe_use_norm: z.boolean().default(false),
});
type Config = z.infer<typeof Config>;

export function kimiK3(config: unknown, weights: Weights): Model {
  const { text_config } = Object(config) as { text_config?: object };
  const parsed = parseConfig(Config, { model_type: "kimi_k3", ...(text_config ?? Object(config)) });
  const { hidden_size: dims, rms_norm_eps: eps, attn_res_block_size: size } = parsed;
  weights.rename({ "language_model.": "" });
  weights.renameParts({
    "_res.proj_weight": "_res_proj.weight",
    "_res.norm_weight": "_res_norm.weight",
    ".block_sparse_moe.": ".mlp.",
  });
  // What blocks of layers have made, in the order in which they come.
  let blocks: MlxArray[] = [];
  const mixture = (name: string) => {
    const mix = residualMixture(weights, name, dims, eps);
    return (partial: MlxArray) => mix(blocks, partial);
  };
  const norm = rmsNorm(weights, "model.norm", dims, eps);
  const mixOutput = size ? mixture("model.output_attn_res") : undefined;
  return decoder(
    parsed,
    weights,
    (name, layer, states) => {
      const attend = attention(parsed, weights, `${name}.self_attn`, layer, states);
      const mlp = makeMlp(parsed, weights, `${name}.mlp`, layer);
      const inputNorm = rmsNorm(weights, `${name}.input_layernorm`, dims, eps);
      const postNorm = rmsNorm(weights, `${name}.post_attention_layernorm`, dims, eps);
      if (!size) return preNormBlock(attend, mlp, inputNorm, postNorm);
      const beforeAttention = mixture(`${name}.self_attention_res`);
      const beforeMlp = mixture(`${name}.mlp_res`);
      return (x, step) => {
        if (layer === 0) blocks = [];
        const taken = beforeAttention(x);
        const begins = layer % size === 0;
        if (begins) blocks = [...blocks, x];
        const residual = begins ? undefined : x;
        const h = attend(taken, step, { norm: inputNorm, residual });
        return mlp(beforeMlp(h), { norm: postNorm, residual: h });
      };
    },
    {
      norm: (h) => norm(mixOutput ? mixOutput(h) : h),
      ignored: /^(model\.)?mtp|^(vision_tower|vision_model|multi_modal_projector|mm_projector)\./,
    },
  );
}

function mixtureWeight(weights: Weights, name: string, dims: number): MlxArray {
  // GGUF files have the product.
  const product = `${name}_score.weight`;
  if (weights.has(product)) return weights.tensor(product, [dims], "float32");
  const scale = weights.tensor(`${name}_norm.weight`, [dims], "float32");
  const direction = weights.tensor(`${name}_proj.weight`, [1, dims], "float32");
  return weights.computed(() => multiply(scale, reshape(direction, [dims])));
}

/** A softmax over blocks and what is made now: how much of each is taken, of each token. */
function residualMixture(weights: Weights, name: string, dims: number, eps: number) {
  const weight = mixtureWeight(weights, name, dims);
  return (blocks: readonly MlxArray[], partial: MlxArray): MlxArray => {
    if (blocks.length === 0) return partial;
    const all = concatenate(
      [...blocks, partial].map((each) => expandDims(each, 0)),
      0,
    ); // (blocks, T, D)
    const normed = weights.device.rmsNorm(astype(all, "float32"), undefined, eps);
    const shares = softmax(sum(multiply(normed, weight), -1, true), 0); // (blocks, T, 1)
    return astype(sum(multiply(all, shares), 0), partial.dtype);
  };
}

function attention(
  config: Config,
  weights: Weights,
  name: string,
  layer: number,
  states: LayerStates,
): AttentionBlock {
  const { hidden_size: dims, mla_use_output_gate, linear_attn_config } = config;
  if (linear_attn_config.kda_layers.includes(layer + 1)) {
    return deltaLayer(config, weights, name, states);
  }
  const sizes = { ...latentSizes(config), queryRank: config.q_lora_rank ?? undefined };
  const width = sizes.heads * sizes.value;
  const gate = mla_use_output_gate ? weights.linear(`${name}.g_proj`, dims, width) : undefined;
  return latentAttention(weights, name, states, sizes, {
    scale: (sizes.plain + sizes.rotary) ** -0.5,
    eps: LATENT_EPS,
    gate: gate && ((x) => sigmoid(gate(x))),
  });
}

function deltaLayer(config: Config, weights: Weights, name: string, states: LayerStates) {
  const { hidden_size: dims, linear_attn_config, rms_norm_eps: eps } = config;
  const { num_heads: heads, head_dim: headDim, short_conv_kernel_size: taps } = linear_attn_config;
  const { gate_lower_bound: least, use_full_rank_gate: isWide } = linear_attn_config;
  const width = heads * headDim;
  weights.rename({ [`${name}.qkv_conv.conv.`]: `${name}.conv1d.` });
  const parts = ["f_a_proj", "b_proj"].map((part) => `${name}.${part}`);
  const narrow = weights.joined(`${name}.narrow_proj`, parts, dims, [headDim, heads]);
  const steps = weights.linear(`${name}.f_b_proj`, headDim, width);
  const open = isWide
    ? weights.linear(`${name}.g_proj`, dims, width)
    : inTwo(weights, name, dims, headDim, width);
  const sizes = { dims, heads, headDim, taps };
  const { rate, bias } = featureRates(weights, name, sizes);
  return deltaAttention(weights, name, states, sizes, eps, (x) => {
    const [f, betas] = split(narrow(x), [headDim]) as [MlxArray, MlxArray];
    const step = add(astype(steps(f), "float32"), bias);
    const power =
      least == null
        ? negative(multiply(logAddExp(step, 0), rate))
        : multiply(sigmoid(multiply(step, rate)), least);
    return { decays: exp(power), betas, open: open(x) };
  });
}

function inTwo(weights: Weights, name: string, dims: number, rank: number, width: number): Linear {
  const narrow = weights.linear(`${name}.g_a_proj`, dims, rank);
  const wide = weights.linear(`${name}.g_b_proj`, rank, width);
  return (x) => wide(narrow(x));
}

function makeMlp(config: Config, weights: Weights, name: string, layer: number): Linear {
  const { hidden_size: dims, intermediate_size, num_experts: experts } = config;
  const gating = situ(config);
  const isSparse =
    experts > 0 && layer >= config.first_k_dense_replace && layer % config.moe_layer_freq === 0;
  if (!isSparse) return gatedMlp(weights, name, dims, intermediate_size, gating);
  const { moe_intermediate_size: hidden, routed_expert_hidden_size: latent } = config;
  stackExperts(weights, name, experts, { gate_proj: "w1", up_proj: "w3", down_proj: "w2" });
  weights.rename({ [`${name}.gate.e_score`]: `${name}.e_score` });
  const sizes = { experts, dims: latent ?? dims, hidden };
  const route = router(
    weights,
    `${name}.gate`,
    { experts, dims },
    {
      each: config.num_experts_per_token,
      scores: "sigmoid",
      correction: `${name}.e_score_correction_bias`,
      groups: { count: config.num_expert_group, kept: config.topk_group, best: 2 },
      isNormalized: config.moe_renormalize,
      scale: config.routed_scaling_factor,
    },
  );
  const mlps = expertMlps(weights, `${name}.switch_mlp`, sizes, gating);
  const into = latent && weights.linear(`${name}.routed_expert_down_proj`, dims, latent);
  const back = latent && weights.linear(`${name}.routed_expert_up_proj`, latent, dims);
  const norm =
    latent && config.latent_moe_use_norm
      ? rmsNorm(weights, `${name}.routed_expert_norm`, latent, config.rms_norm_eps)
      : undefined;
  const width = hidden * config.num_shared_experts;
  const shared = width
    ? gatedMlp(weights, `${name}.shared_experts`, dims, width, gating)
    : undefined;
  return (input, { norm: before, residual } = {}) => {
    const x = before ? before(input) : input;
    const { chosen, shares } = route(x);
    const mixed = weights.device.combine(mlps(into ? into(x) : x, chosen), shares);
    const made = back ? back(mixed, { norm }) : mixed;
    const whole = shared ? add(shared(x), made) : made;
    return residual ? add(residual, whole) : whole;
  };
}

/** Both halves are squeezed, and the gate is multiplied by its sigmoid. */
function situ(config: Config): Gating {
  const { activation_situ_beta, activation_situ_linear_beta: most } = config;
  const beta = activation_situ_beta || 1;
  const squeezed = (x: MlxArray, cap: number) => multiply(tanh(multiply(x, 1 / cap)), cap);
  return (gate, up) => {
    const [g, u] = [astype(gate, "float32"), astype(up, "float32")];
    const opened = multiply(squeezed(g, beta), sigmoid(g));
    return astype(multiply(opened, most == null ? u : squeezed(u, most)), up.dtype);
  };
}
