// The decoder that most models with experts are: Llama's, with what its relatives do beside it in attention, and
// with MLPs that are the architecture's own.
import type { Linear, Norm } from "../device/device.ts";
import { type BaseConfig, headsOf, windowOf } from "./config.ts";
import { type DecoderOptions, decoder } from "./decoder.ts";
import {
  type AttentionBlock,
  type AttentionParts,
  type AttentionSizes,
  attentionBlock,
  preNormBlock,
  projection,
  rmsNorm,
} from "./layers.ts";
import type { Model } from "./model.ts";
import { makeRope, ropeOptions } from "./rope.ts";
import type { LayerStates } from "./states.ts";
import type { Weights } from "./weights.ts";

/** In which the families differ. */
export type AttentionOptions = {
  /** How many features of a head RoPE rotates; all unless it says. */
  rotary?: number | undefined;
  /** Whether a layer applies RoPE. */
  rotates?: (layer: number) => boolean;
  /** Whether a layer has a window, where layer_types does not say. */
  slides?: (layer: number) => boolean;
  /** Norms of queries and keys: over each head, or over all heads at once. */
  norms?: "heads" | "all" | undefined;
  /** Gives tensors of attention with this name the names that are asked for. */
  arrange?: (name: string, sizes: AttentionSizes) => void;
};

export type MakeAttention = (name: string, layer: number, states: LayerStates) => AttentionBlock;
export type MakeMlp = (name: string, layer: number) => Linear;

/** `name`.self_attn and `name`.mlp of each layer, which some files call block_sparse_moe. */
export function preNormDecoder(
  config: BaseConfig,
  weights: Weights,
  makeAttention: MakeAttention,
  makeMlp: MakeMlp,
  options: DecoderOptions = {},
): Model {
  const { hidden_size: dims, rms_norm_eps: eps } = config;
  return decoder(
    config,
    weights,
    (name, layer, states) => {
      weights.rename({ [`${name}.block_sparse_moe.`]: `${name}.mlp.` });
      return preNormBlock(
        makeAttention(`${name}.self_attn`, layer, states),
        makeMlp(`${name}.mlp`, layer),
        rmsNorm(weights, `${name}.input_layernorm`, dims, eps),
        rmsNorm(weights, `${name}.post_attention_layernorm`, dims, eps),
      );
    },
    options,
  );
}

/** Attention as configurations of the usual keys describe it. */
export function attentionLayers(
  config: BaseConfig,
  weights: Weights,
  options: AttentionOptions = {},
): MakeAttention {
  const { rotates = () => true, slides = () => false, norms, arrange } = options;
  const sizes = { dims: config.hidden_size, ...headsOf(config) };
  const { headDim } = sizes;
  const rope = makeRope(weights, ropeOptions(config, options.rotary ?? headDim));
  return (name, layer, states) => {
    arrange?.(name, sizes);
    return attentionBlock(weights, name, states, sizes, {
      rope: rotates(layer) ? rope : undefined,
      ...normParts(weights, name, sizes, config.rms_norm_eps, norms),
      attention: { scale: headDim ** -0.5, window: windowOf(config, layer, slides) },
    });
  };
}

/** q_norm and k_norm, over each head or over all heads at once. */
function normParts(
  weights: Weights,
  name: string,
  sizes: AttentionSizes,
  eps: number,
  norms: AttentionOptions["norms"],
): Pick<AttentionParts, "qNorm" | "kNorm" | "project"> {
  if (!norms) return {};
  const { heads, kvHeads, headDim } = sizes;
  const make = (part: "q" | "k", count: number): Norm =>
    rmsNorm(weights, `${name}.${part}_norm`, count * headDim, eps);
  if (norms === "heads") return { qNorm: make("q", 1), kNorm: make("k", 1) };
  return {
    project: projection(weights, name, sizes, { q: make("q", heads), k: make("k", kvHeads) }),
  };
}
