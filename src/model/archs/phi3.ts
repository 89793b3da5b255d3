// Phi 3, 3.5 and 4-mini: one matrix for queries, keys and values, one for the MLP's two halves.
import { type BaseConfig, count } from "../config.ts";
import { type ConfigOf, family } from "../family.ts";

export const phiKeys = {
  max_position_embeddings: count.default(131_072),
  original_max_position_embeddings: count.default(4096),
};

export const phi3 = family({
  config: phiKeys,
  design: (config) => ({ config: phiScaling(config), slides: () => true }),
});

/** The length it was trained with first stands beside the scaling, not in it. */
export function phiScaling(config: ConfigOf<typeof phiKeys>): Partial<BaseConfig> {
  const { original_max_position_embeddings, rope_scaling, rope_parameters } = config;
  const scaling = rope_scaling ?? rope_parameters;
  return { rope_scaling: scaling && { original_max_position_embeddings, ...scaling } };
}
