// Llama 4: chunked attention in layers with RoPE, full attention in those without; one routed and one shared expert
// per token. Loads only the text decoder of multimodal files.
import { z } from "zod";
import { count, flag, integer, layerTypes, positive, real } from "../checkpoint/config.ts";
import { family, textPart } from "../design/family.ts";
import { expertKeys, expertsOf } from "../layers/expert-design.ts";
import { withTemperature } from "../layers/head-changes.ts";

const text = family({
  config: {
    ...expertKeys,
    attention_chunk_size: count.nullish(),
    /** Which layers have chunked attention; by default those with RoPE. */
    layer_types: layerTypes("chunked_attention", "full_attention").nullish(),
    /** MLP width of layers without experts; intermediate_size is an expert's. */
    intermediate_size_mlp: count,
    n_routed_experts: integer.default(0),
    num_experts_per_tok: z.literal(1).default(1),
    /** Per layer, 0 or false if it has no RoPE; by default every fourth has none. */
    no_rope_layers: z.array(z.union([integer, flag])).nullish(),
    use_qk_norm: flag.default(true),
    attn_temperature_tuning: z.union([integer, flag]).default(true),
    floor_scale: positive.default(8192),
    attn_scale: real.default(0.1),
  },
  keys: { n_routed_experts: "num_local_experts" },
  names: { ".feed_forward.router.": ".feed_forward.gate." },
  design: ({ no_rope_layers, layer_types, attention_chunk_size, ...config }, weights) => {
    const rotates = (layer: number) => Boolean(no_rope_layers?.[layer] ?? (layer + 1) % 4 !== 0);
    const temperature = { scale: config.attn_scale, every: config.floor_scale, first: 1 };
    const width = config.intermediate_size;
    return {
      config: { layer_types: undefined, sliding_window: attention_chunk_size },
      slides: (layer) =>
        layer_types ? layer_types[layer] === "chunked_attention" : rotates(layer),
      attention: { chunked: true },
      rope: (whole, _, layer) => (rotates(layer) ? whole() : undefined),
      rotatesNeighbours: true,
      // The model applies head norms after RoPE. Here they come first, with the same result: rotation keeps a
      // vector's length.
      headNorms: config.use_qk_norm ? "plain" : undefined,
      parts: (_, __, { rope }) => (rope ? {} : { qNorm: undefined, kNorm: undefined }),
      around: (attend, { sizes, layer }) =>
        !rotates(layer) && config.attn_temperature_tuning
          ? withTemperature(attend, sizes.heads * sizes.headDim, temperature)
          : attend,
      mlpName: "feed_forward",
      hidden: config.intermediate_size_mlp,
      experts: expertsOf(config, {
        hidden: width,
        scores: "sigmoid",
        isNormalized: false,
        scalesInputs: true,
        isSparse: (layer) => weights.stored.has(`model.layers.${layer}.feed_forward.gate.weight`),
        shared: { name: "shared_expert", width },
      }),
    };
  },
});

export const llama4 = textPart(text, { isBare: true });
