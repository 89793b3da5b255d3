// Phi 3, 3.5 and 4-mini: one matrix for queries, keys and values, one for the MLP's two halves.
import { count } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";

export const phi3 = family({
  config: { original_max_position_embeddings: count.default(4096) },
  defaults: { max_position_embeddings: 131_072 },
  design: ({ original_max_position_embeddings, rope_scaling: scaling }) => ({
    slides: () => true,
    // The length it was trained with first stands beside the scaling, not in it.
    config: { rope_scaling: scaling && { original_max_position_embeddings, ...scaling } },
  }),
});
