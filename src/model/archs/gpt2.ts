// GPT 2: layer norms, learned positions, one matrix for queries, keys and values.
import { z } from "zod";
import { add } from "../../mlx/ops.ts";
import { activationOf } from "../activations.ts";
import { transposed } from "../arrangement.ts";
import { count, type Keys, positive, word } from "../config.ts";
import type { Design } from "../design.ts";
import { type ConfigOf, family } from "../family.ts";
import type { Weights } from "../weights.ts";

export const gptConfig = {
  rms_norm_eps: positive.default(1e-5),
  max_position_embeddings: count,
  n_inner: count.nullish(),
  activation_function: word.default("gelu_new"),
  /** Scores that are scaled otherwise, which few models have. */
  scale_attn_weights: z.literal(true).default(true),
  scale_attn_by_inverse_layer_idx: z.literal(false).default(false),
};
type Config = ConfigOf<typeof gptConfig>;

export const gptKeys: Keys = {
  hidden_size: "n_embd",
  num_hidden_layers: "n_layer",
  num_attention_heads: "n_head",
  max_position_embeddings: "n_positions",
  rms_norm_eps: "layer_norm_epsilon",
};

/** Masks. */
export const gptMasks = /\.attn\.(masked_)?bias$/;

export const gpt2 = family({
  config: gptConfig,
  keys: gptKeys,
  leftOut: gptMasks,
  design: (config, weights) => {
    for (let layer = 0; layer < config.num_hidden_layers; layer++) {
      exchangeSides(weights, `model.layers.${layer}`, config.hidden_size);
    }
    return { ...gptMlp(config), ...learnedPositions(config, weights) };
  },
});

export function gptMlp({ hidden_size, n_inner, activation_function }: Config): Design {
  return {
    isLayerNorm: true,
    hidden: n_inner ?? 4 * hidden_size,
    activation: activationOf(activation_function, "activation_function"),
  };
}

/** A vector for each position, that is added to the token's. */
export function learnedPositions(config: Config, weights: Weights): Design {
  const { max_position_embeddings: most, hidden_size: dims } = config;
  const positions = weights.embedding("model.embed_positions", most, dims);
  return {
    config: { tie_word_embeddings: true },
    rope: () => undefined,
    afterEmbedding: (h, step) => add(h, positions.lookup(step.positions())),
  };
}

/** The authors' files have matrices (in, out). */
function exchangeSides(weights: Weights, layer: string, dims: number): void {
  if (weights.shapeOf(`${layer}.self_attn.qkv_proj.weight`)?.join() !== `${dims},${3 * dims}`)
    return;
  for (const part of ["self_attn.qkv_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"]) {
    weights.arrange([`${layer}.${part}.weight`], ([stored]) => {
      const [rows, columns] = stored!.shape as [number, number];
      const whole = { ...stored!, shape: [1, rows, columns] };
      const exchanged = transposed(stored!.name, whole, { first: 0, count: columns });
      return { ...exchanged, shape: [columns, rows] };
    });
  }
}
