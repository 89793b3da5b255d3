// OLMo 2: norms behind attention and MLP instead of before, and over all of the queries and keys.
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import { projection, rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { makeRope, ropeOptions } from "../rope.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

export function olmo2(config: unknown, weights: Weights): Model {
  return olmoDecoder(parseConfig(BaseConfig, config), weights, () => false);
}

/** `slides` says which layers have a window, where layer_types does not. */
export function olmoDecoder(
  config: BaseConfig,
  weights: Weights,
  slides: (layer: number) => boolean,
): Model {
  const { rms_norm_eps: eps } = config;
  const { headDim } = headsOf(config);
  const near = makeRope(weights, { dims: headDim, base: ropeOptions(config, headDim).base });
  return transformer(config, weights, {
    slides,
    // A context that was stretched is so for the layers that see all of it.
    rope: (whole, window) => (window === undefined ? whole() : near),
    parts: (name, sizes) => {
      const norms = {
        q: rmsNorm(weights, `${name}.q_norm`, sizes.heads * headDim, eps),
        k: rmsNorm(weights, `${name}.k_norm`, sizes.kvHeads * headDim, eps),
      };
      return { project: projection(weights, name, sizes, norms) };
    },
    norms: { afterAttention: "post_attention_layernorm", afterMlp: "post_feedforward_layernorm" },
  });
}
