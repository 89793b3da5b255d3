// Kimi K3: Kimi Linear with experts of a smaller vector, and layers that take a mixture of what earlier ones have made
// in place of its sum. Of files that also see, the part that reads and writes text.
import { z } from "zod";
import { sigmoid } from "../../mlx/ops.ts";
import { situ } from "../activations.ts";
import { count, flag, real } from "../config.ts";
import { family, textPart } from "../family.ts";
import { latentLayers } from "../latent-layers.ts";
import { mixedResiduals } from "../mixed-residuals.ts";
import { kimiDelta, kimiLinear } from "./kimi-linear.ts";

const text = family({
  like: kimiLinear,
  config: {
    hidden_act: z.literal("situ").default("situ"),
    activation_situ_beta: real.nullish(),
    activation_situ_linear_beta: real.nullish(),
    /** So many layers add to one sum, which later ones mix; all to one where there is none. */
    attn_res_block_size: count.nullish(),
    mla_use_nope: z.literal(true).default(true),
    mla_use_output_gate: flag.default(false),
    moe_router_activation_func: z.literal("sigmoid").default("sigmoid"),
    routed_expert_hidden_size: count.nullish(),
    latent_moe_use_norm: flag.default(false),
  },
  names: { "_res.proj_weight": "_res_proj.weight", "_res.norm_weight": "_res_norm.weight" },
  design: (config, weights, base) => {
    const { hidden_size: dims, rms_norm_eps: eps, routed_expert_hidden_size: latent } = config;
    const attention = latentLayers(config, weights, { rope: undefined });
    const norm = config.latent_moe_use_norm ? { name: "routed_expert_norm", eps } : undefined;
    return {
      mix: (name, layer, states) => {
        const delta = kimiDelta(config, weights, name, layer, states);
        if (delta || !config.mla_use_output_gate) return delta ?? attention(name, layer, states);
        const width = config.num_attention_heads * config.v_head_dim;
        const gate = weights.linear(`${name}.g_proj`, dims, width);
        return attention(name, layer, states, { gate: (x) => sigmoid(gate(x)) });
      },
      gating: situ(config.activation_situ_beta || 1, config.activation_situ_linear_beta),
      experts: base.experts && {
        ...base.experts,
        latent: latent
          ? {
              size: latent,
              into: "routed_expert_down_proj",
              back: "routed_expert_up_proj",
              norm,
            }
          : undefined,
      },
      ...(config.attn_res_block_size
        ? mixedResiduals(weights, dims, eps, config.attn_res_block_size)
        : {}),
    };
  },
});

export const kimiK3 = textPart(text, { isBare: true });
