// LongCat Flash: two latent attentions and two MLPs per layer. Experts read the first MLP's input, and their output
// is added at the layer's end; identity experts return their input.
import { z } from "zod";
import { add } from "../../mlx/ops.ts";
import { count, flag, integer } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { expertsOf, requiredExpertKeys } from "../layers/expert-design.ts";
import { routedMlp } from "../layers/experts.ts";
import { latentKeys, latentLayers } from "../layers/latent-layers.ts";
import { gatedMlp, rmsNorm } from "../layers/layers.ts";

export const longcatFlash = family({
  config: {
    ...latentKeys,
    ...requiredExpertKeys,
    ffn_hidden_size: count,
    moe_intermediate_size: count,
    zero_expert_num: integer.default(0),
    zero_expert_type: z.literal("identity").default("identity"),
    /** Whether to scale queries and latents by sqrt(hidden size / rank). */
    mla_scale_q_lora: flag.default(true),
    mla_scale_kv_lora: flag.default(true),
  },
  defaults: { norm_topk_prob: false },
  keys: {
    num_hidden_layers: "num_layers",
    num_experts_per_tok: "moe_topk",
    moe_intermediate_size: "expert_ffn_hidden_size",
  },
  names: { ".mlp.router.classifier.": ".mlp.gate.", ".mlp.router.": ".mlp.gate." },
  design: (config, weights) => {
    const { hidden_size: dims, rms_norm_eps: eps, ffn_hidden_size } = config;
    const { q_lora_rank, kv_lora_rank, mla_scale_q_lora, mla_scale_kv_lora } = config;
    const attention = latentLayers(config, weights, {
      queryFactor: mla_scale_q_lora && q_lora_rank ? (dims / q_lora_rank) ** 0.5 : 1,
      latentScale: mla_scale_kv_lora ? (dims / kv_lora_rank) ** 0.5 : 1,
    });
    const experts = expertsOf(config, {
      correction: "gate.e_score_correction_bias",
      identities: config.zero_expert_num,
    });
    const { n_routed_experts: first, zero_expert_num: identities } = config;
    const surplus = Array.from({ length: identities }, (_, i) => first + i).join("|");
    return {
      // Ignores the weights that transformers saves for identity experts.
      ignored: [new RegExp(`\\.mlp\\.experts\\.(${surplus})\\.`)],
      layer: (name, layer, states) => {
        const halves = [0, 1].map((half) => ({
          attend: attention(`${name}.self_attn.${half}`, layer, states),
          mlp: gatedMlp(weights, `${name}.mlps.${half}`, dims, ffn_hidden_size),
          inputNorm: rmsNorm(weights, `${name}.input_layernorm.${half}`, dims, eps),
          postNorm: rmsNorm(weights, `${name}.post_attention_layernorm.${half}`, dims, eps),
        }));
        const [first, second] = halves as [(typeof halves)[0], (typeof halves)[0]];
        const sparse = routedMlp(weights, `${name}.mlp`, dims, experts);
        return (x, step) => {
          const h = first.attend(x, step, { norm: first.inputNorm, residual: x });
          const normed = first.postNorm(h);
          const middle = first.mlp(normed, { residual: h });
          const g = second.attend(middle, step, { norm: second.inputNorm, residual: middle });
          return add(second.mlp(g, { norm: second.postNorm, residual: g }), sparse(normed));
        };
      },
    };
  },
});
