// Kimi K3: Kimi Linear with experts in a smaller space, and layers that read a mixture of earlier layers' outputs in
// place of the residual sum. Loads only the text decoder of multimodal files.
import { z } from "zod";
import { count, flag, real } from "../checkpoint/config.ts";
import { family, textPart } from "../design/family.ts";
import { mixedResiduals } from "../design/mixed-residuals.ts";
import { situ } from "../layers/activations.ts";
import { kimiLayers, kimiLinear } from "./kimi-linear.ts";

/** Names of the projections down to the experts' smaller space, and back up. */
const LATENT_NAMES = { into: "routed_expert_down_proj", back: "routed_expert_up_proj" };

const text = family({
  like: kimiLinear,
  config: {
    hidden_act: z.literal("situ").default("situ"),
    activation_situ_beta: real.nullish(),
    activation_situ_linear_beta: real.nullish(),
    /** Number of consecutive layers that add to one residual sum; undefined if all layers add to one. */
    attn_res_block_size: count.nullish(),
    mla_use_nope: z.literal(true).default(true),
    mla_use_output_gate: flag.default(false),
    moe_router_activation_func: z.literal("sigmoid").default("sigmoid"),
    routed_expert_hidden_size: count.nullish(),
    latent_moe_use_norm: flag.default(false),
  },
  names: { "_res.proj_weight": "_res_proj.weight", "_res.norm_weight": "_res_norm.weight" },
  design: (config, weights, base) => {
    const { rms_norm_eps: eps, routed_expert_hidden_size: latent } = config;
    const outputGate = config.mla_use_output_gate ? { name: "g_proj" } : undefined;
    const norm = config.latent_moe_use_norm ? { name: "routed_expert_norm", eps } : undefined;
    return {
      mix: kimiLayers(config, weights, { outputGate }),
      gating: situ(config.activation_situ_beta || 1, config.activation_situ_linear_beta),
      experts: base.experts && {
        ...base.experts,
        latent: latent ? { size: latent, norm, ...LATENT_NAMES } : undefined,
      },
      ...(config.attn_res_block_size
        ? mixedResiduals(weights, config, config.attn_res_block_size)
        : {}),
    };
  },
});

export const kimiK3 = textPart(text, { isBare: true });
