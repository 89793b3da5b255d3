// OLMo 2: norms behind attention and MLP instead of before, and over all of the queries and keys.
import { add } from "../../mlx/ops.ts";
import { BaseConfig, headsOf, parseConfig, windowOf } from "../config.ts";
import { decoder } from "../decoder.ts";
import { attentionBlock, gatedMlp, projection, rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { makeRope, ropeOptions } from "../rope.ts";
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
  const { hidden_size: dims, intermediate_size, rms_norm_eps: eps } = config;
  const sizes = { dims, ...headsOf(config) };
  const { heads, kvHeads, headDim } = sizes;
  const options = ropeOptions(config, headDim);
  const rope = makeRope(weights, options);
  const nearRope = makeRope(weights, { dims: headDim, base: options.base });
  return decoder(config, weights, (name, layer, states) => {
    const window = windowOf(config, layer, slides);
    const norms = {
      q: rmsNorm(weights, `${name}.self_attn.q_norm`, heads * headDim, eps),
      k: rmsNorm(weights, `${name}.self_attn.k_norm`, kvHeads * headDim, eps),
    };
    const attend = attentionBlock(weights, `${name}.self_attn`, states, sizes, {
      // A context that was stretched is so for the layers that see all of it.
      rope: window === undefined ? rope : nearRope,
      project: projection(weights, `${name}.self_attn`, sizes, norms),
      attention: { scale: headDim ** -0.5, window },
    });
    const mlp = gatedMlp(weights, `${name}.mlp`, dims, intermediate_size);
    const attentionNorm = rmsNorm(weights, `${name}.post_attention_layernorm`, dims, eps);
    const mlpNorm = rmsNorm(weights, `${name}.post_feedforward_layernorm`, dims, eps);
    return (x, step) => {
      const h = add(x, attentionNorm(attend(x, step)));
      return add(h, mlpNorm(mlp(h)));
    };
  });
}
