// ERNIE 4.5 with experts in most layers. Neighbouring features rotate together.
import { z } from "zod";
import { count, integer } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { expertKeys, expertsOf } from "../layers/expert-design.ts";

/** Layer index: a number for text, or a list with a number for text and one for images. */
const layerIndex = z.union([integer, z.array(integer).min(1)]);

export const ernie45Moe = family({
  config: {
    ...expertKeys,
    n_routed_experts: count,
    moe_intermediate_size: integer.nullish(),
    moe_layer_interval: count.default(1),
    moe_layer_start_index: layerIndex.default(0),
    moe_layer_end_index: layerIndex.nullish(),
    moe_gate_act: z.enum(["softmax", "sigmoid"]).default("softmax"),
  },
  keys: {
    n_routed_experts: "moe_num_experts",
    num_experts_per_tok: "moe_k",
    n_shared_experts: "moe_num_shared_experts",
  },
  names: { ".mlp.moe_statics.": ".mlp." },
  design: (config, weights) => {
    const first = Math.min(...[config.moe_layer_start_index].flat());
    const last = Math.max(...[config.moe_layer_end_index ?? config.num_hidden_layers - 1].flat());
    // Only the authors' files have routing corrections (biases for choosing experts); MLX's leave them out.
    const isCorrected = weights.stored.hasAny(/\.mlp\.e_score_correction_bias$/);
    return {
      rotatesNeighbours: true,
      experts: expertsOf(config, {
        hidden: config.moe_intermediate_size || config.intermediate_size,
        scores: config.moe_gate_act,
        correction: isCorrected ? "e_score_correction_bias" : undefined,
        isNormalized: true,
        isSparse: (layer) =>
          (layer + 1) % config.moe_layer_interval === 0 && layer >= first && layer <= last,
      }),
    };
  },
});
