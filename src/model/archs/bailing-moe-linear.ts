// Ring 2 linear: attention whose heads forget at a fixed rate in most layers, softmax attention in the others.
import { count, headsOf } from "../config.ts";
import { fadingAttention } from "../fading-attention.ts";
import { type ConfigOf, family } from "../family.ts";
import { makeRope, ropeOptions } from "../rope.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";
import { bailingConfig, bailingDesign, bailingKeys } from "./bailing-moe.ts";

export const linearConfig = {
  ...bailingConfig,
  /** Of so many layers the last has softmax attention, and so have those behind the last whole group. */
  layer_group_size: count,
  /** Groups of the norm behind the others' attention. */
  group_norm_size: count,
};

export const bailingMoeLinear = family({
  config: linearConfig,
  keys: bailingKeys,
  design: (config, weights) => {
    const fading = fadingLayers(config, weights);
    const last = config.num_hidden_layers - 1;
    return {
      ...bailingDesign(config, weights),
      mix: (name, layer, states) =>
        isGlobal(config, layer)
          ? undefined
          : fading(name, states, 1 - Math.max(0, layer - 1) / last),
    };
  },
});

export function isGlobal(
  { layer_group_size: size, num_hidden_layers: layers }: GroupConfig,
  layer: number,
): boolean {
  return (layer + 1) % size === 0 || layer >= layers - (layers % size);
}
type GroupConfig = { layer_group_size: number; num_hidden_layers: number };

export function fadingLayers(config: ConfigOf<typeof linearConfig>, weights: Weights) {
  const { use_qk_norm: isNormed, group_norm_size: groups, partial_rotary_factor } = config;
  const rotary = Math.floor(headsOf(config).headDim * partial_rotary_factor);
  const rope = makeRope(weights, ropeOptions(config, rotary));
  return (name: string, states: LayerStates, pace: number) =>
    fadingAttention(config, weights, name, states, { rope, isNormed, groups, pace });
}
