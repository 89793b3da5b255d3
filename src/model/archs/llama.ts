// Llama 2, 3, 3.1, 3.2, SmolLM2 and the many models of the same make.
import { BaseConfig, headsOf, parseConfig, windowOf } from "../config.ts";
import { decoder } from "../decoder.ts";
import { attentionBlock, gatedMlp, preNormBlock, rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { makeRope, ropeOptions } from "../rope.ts";
import type { Weights } from "../weights.ts";

export function llama(config: unknown, weights: Weights): Model {
  return llamaDecoder(parseConfig(BaseConfig, config), weights);
}

/** In which its relatives differ, layer by layer. */
export type LlamaOptions = {
  /** Whether attention has a window, where layer_types does not say. */
  slides?: (layer: number) => boolean;
  /** Whether a layer applies RoPE. */
  rotates?: (layer: number) => boolean;
};

export function llamaDecoder(
  config: BaseConfig,
  weights: Weights,
  { slides = () => false, rotates = () => true }: LlamaOptions = {},
): Model {
  const { hidden_size: dims, intermediate_size, rms_norm_eps: eps } = config;
  const sizes = { dims, ...headsOf(config) };
  const rope = makeRope(weights, ropeOptions(config, sizes.headDim));
  return decoder(config, weights, (name, layer, states) =>
    preNormBlock(
      attentionBlock(weights, `${name}.self_attn`, states, sizes, {
        rope: rotates(layer) ? rope : undefined,
        attention: { scale: sizes.headDim ** -0.5, window: windowOf(config, layer, slides) },
      }),
      gatedMlp(weights, `${name}.mlp`, dims, intermediate_size),
      rmsNorm(weights, `${name}.input_layernorm`, dims, eps),
      rmsNorm(weights, `${name}.post_attention_layernorm`, dims, eps),
    ),
  );
}
