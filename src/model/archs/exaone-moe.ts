// K-EXAONE: DeepSeek V3's routing, windows in most layers, and RoPE only in the layers with a window.
import { z } from "zod";
import { count, flag, layerTypes } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { correctedScores, expertKeys, expertsOf, mlpTypes } from "../layers/expert-design.ts";

export const exaoneMoe = family({
  config: {
    ...expertKeys,
    n_routed_experts: count,
    layer_types: layerTypes("full_attention", "sliding_attention"),
    is_moe_layer: z.array(flag).nullish(),
  },
  defaults: { rope_theta: 1_000_000, routed_scaling_factor: 2.5 },
  keys: { n_routed_experts: "num_experts", n_shared_experts: "num_shared_experts" },
  names: { ".mlp.e_score": ".mlp.gate.e_score" },
  design: ({ layer_types, is_moe_layer, ...config }) => ({
    headNorms: ["q_norm", "k_norm"],
    rope: (whole, window) =>
      window !== undefined || !layer_types.includes("sliding_attention") ? whole() : undefined,
    experts: expertsOf(
      { ...config, mlp_layer_types: config.mlp_layer_types ?? mlpTypes(is_moe_layer) },
      correctedScores,
    ),
  }),
});
