// Phi 3, 3.5 and 4-mini: fused queries, keys and values, and fused gate and up.
import { count } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";

export const phi3 = family({
  config: { original_max_position_embeddings: count.default(4096) },
  defaults: { max_position_embeddings: 131_072 },
  design: ({ original_max_position_embeddings, rope_scaling: scaling }) => ({
    slides: () => true,
    // Adds the original length, which phi3's configuration has outside of rope_scaling.
    config: { rope_scaling: scaling && { original_max_position_embeddings, ...scaling } },
  }),
});
