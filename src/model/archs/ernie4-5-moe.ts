// ERNIE 4.5 with experts in most layers. Features that rotate together are neighbours.
import { z } from "zod";
import { BaseConfig, parseConfig } from "../config.ts";
import { routedMlp } from "../experts.ts";
import { gatedMlp } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

/** One for text, and one for images. */
const layerIndex = z.union([z.int(), z.array(z.int()).min(1)]);

const Config = BaseConfig.extend({
  moe_num_experts: z.int().positive(),
  moe_k: z.int().positive().default(1),
  moe_intermediate_size: z.int().nullish(),
  moe_num_shared_experts: z.int().default(0),
  moe_layer_interval: z.int().positive().default(1),
  moe_layer_start_index: layerIndex.default(0),
  moe_layer_end_index: layerIndex.nullish(),
  moe_gate_act: z.enum(["softmax", "sigmoid"]).default("softmax"),
});

export function ernie45Moe(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size, moe_num_experts: experts } = parsed;
  const hidden = parsed.moe_intermediate_size || intermediate_size;
  const first = Math.min(...[parsed.moe_layer_start_index].flat());
  const last = Math.max(...[parsed.moe_layer_end_index ?? parsed.num_hidden_layers - 1].flat());
  const isSparse = (layer: number) =>
    (layer + 1) % parsed.moe_layer_interval === 0 && layer >= first && layer <= last;
  return transformer(parsed, weights, {
    rotatesNeighbours: true,
    mlp: (name, layer) => {
      if (!isSparse(layer)) return gatedMlp(weights, name, dims, intermediate_size);
      return routedMlp(
        weights,
        name,
        { experts, dims, hidden },
        {
          each: parsed.moe_k,
          scores: parsed.moe_gate_act,
          correction: nameCorrection(weights, name, experts),
          isNormalized: true,
          scale: 1,
        },
        { name: `${name}.shared_experts`, width: hidden * parsed.moe_num_shared_experts },
      );
    },
    ignored: /^(model\.)?mtp_/,
  });
}

/** The authors' files have one, as a matrix of one row; MLX's leave it out. */
function nameCorrection(weights: Weights, name: string, experts: number): string | undefined {
  const stored = `${name}.moe_statics.e_score_correction_bias`;
  if (!weights.has(stored)) return undefined;
  const correction = `${name}.e_score_correction_bias`;
  weights.arrange([stored], ([tensor]) => ({ ...tensor!, name: correction, shape: [experts] }));
  return correction;
}
