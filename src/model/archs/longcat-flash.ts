// LongCat Flash: two latent attentions and two MLPs in each layer, with experts beside the second half. Some experts
// give back what they get.
import { z } from "zod";
import type { Linear } from "../../device/device.ts";
import { add, astype, less, multiply, sum, where, zeros } from "../../mlx/ops.ts";
import { count, flag, integer, positive } from "../config.ts";
import { arrangeExperts } from "../expert-layouts.ts";
import { router } from "../experts.ts";
import { type ConfigOf, family } from "../family.ts";
import { latentKeys, latentLayers } from "../latent-layers.ts";
import { expertMlps, gatedMlp, rmsNorm } from "../layers.ts";
import type { Weights } from "../weights.ts";

const keys = {
  ...latentKeys,
  ffn_hidden_size: count,
  expert_ffn_hidden_size: count,
  moe_topk: count,
  n_routed_experts: count,
  zero_expert_num: integer.default(0),
  zero_expert_type: z.literal("identity").default("identity"),
  norm_topk_prob: flag.default(false),
  routed_scaling_factor: positive.default(1),
  /** Whether queries and latents are scaled, by what they are narrower than hidden states. */
  mla_scale_q_lora: flag.default(false),
  mla_scale_kv_lora: flag.default(false),
};
type Config = ConfigOf<typeof keys>;

export const longcatFlash = family({
  config: keys,
  keys: { num_hidden_layers: "num_layers" },
  design: (config, weights) => {
    const { hidden_size: dims, rms_norm_eps: eps, ffn_hidden_size } = config;
    const { q_lora_rank, kv_lora_rank, mla_scale_q_lora, mla_scale_kv_lora } = config;
    const attention = latentLayers(config, weights, {
      queryFactor: mla_scale_q_lora && q_lora_rank ? (dims / q_lora_rank) ** 0.5 : 1,
      latentScale: mla_scale_kv_lora ? (dims / kv_lora_rank) ** 0.5 : 1,
    });
    return {
      layer: (name, layer, states) => {
        const halves = [0, 1].map((half) => ({
          attend: attention(`${name}.self_attn.${half}`, layer, states),
          mlp: gatedMlp(weights, `${name}.mlps.${half}`, dims, ffn_hidden_size),
          inputNorm: rmsNorm(weights, `${name}.input_layernorm.${half}`, dims, eps),
          postNorm: rmsNorm(weights, `${name}.post_attention_layernorm.${half}`, dims, eps),
        }));
        const [first, second] = halves as [(typeof halves)[0], (typeof halves)[0]];
        const experts = sparseMlp(config, weights, `${name}.mlp`);
        return (x, step) => {
          const h = first.attend(x, step, { norm: first.inputNorm, residual: x });
          const normed = first.postNorm(h);
          const middle = first.mlp(normed, { residual: h });
          const g = second.attend(middle, step, { norm: second.inputNorm, residual: middle });
          return add(second.mlp(g, { norm: second.postNorm, residual: g }), experts(normed));
        };
      },
    };
  },
});

function sparseMlp(config: Config, weights: Weights, name: string): Linear {
  const { hidden_size: dims, expert_ffn_hidden_size: hidden, n_routed_experts: experts } = config;
  arrangeExperts(weights, name, experts);
  const route = router(
    weights,
    `${name}.router.classifier`,
    { experts: experts + config.zero_expert_num, dims },
    {
      each: config.moe_topk,
      correction: `${name}.router.e_score_correction_bias`,
      isNormalized: config.norm_topk_prob,
      scale: config.routed_scaling_factor,
    },
  );
  const mlps = expertMlps(weights, `${name}.switch_mlp`, { experts, dims, hidden });
  return (x) => {
    const { chosen, shares } = route(x);
    const isExpert = less(chosen, experts);
    const nothing = zeros(shares.shape);
    const real = where(isExpert, chosen, 0);
    const made = weights.device.combine(mlps(x, real), where(isExpert, shares, 0));
    const kept = sum(where(isExpert, nothing, shares), -1, true); // (T, 1)
    return add(made, multiply(x, astype(kept, x.dtype)));
  };
}
