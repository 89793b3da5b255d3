// GPT 2: layer norms, learned positions, one matrix for queries, keys and values.
import { z } from "zod";
import { add } from "../../mlx/ops.ts";
import { count, word } from "../checkpoint/config.ts";
import { transposed } from "../checkpoint/stored/arrangement.ts";
import { family } from "../design/family.ts";
import { activationOf } from "../layers/activations.ts";
import type { Weights } from "../weights/weights.ts";

/** The part of GPT 2 that GPT-J shares. */
export const gpt = family({
  config: {
    max_position_embeddings: count,
    n_inner: count.nullish(),
    activation_function: word.default("gelu_new"),
    /** Models that scale attention's scores differently set this key or the next and are refused. */
    scale_attn_weights: z.literal(true).default(true),
    scale_attn_by_inverse_layer_idx: z.literal(false).default(false),
  },
  defaults: { rms_norm_eps: 1e-5 },
  keys: {
    hidden_size: "n_embd",
    num_hidden_layers: "n_layer",
    num_attention_heads: "n_head",
    max_position_embeddings: "n_positions",
    rms_norm_eps: "layer_norm_epsilon",
  },
  // Causal masks that some files contain.
  leftOut: /\.attn\.(masked_)?bias$/,
  design: ({ hidden_size, n_inner, activation_function }) => ({
    isLayerNorm: true,
    hidden: n_inner ?? 4 * hidden_size,
    activation: activationOf(activation_function, "activation_function"),
  }),
});

export const gpt2 = family({
  like: gpt,
  design: (config, weights) => {
    const { max_position_embeddings: most, hidden_size: dims, num_hidden_layers } = config;
    for (let layer = 0; layer < num_hidden_layers; layer++) {
      exchangeSides(weights, `model.layers.${layer}`, dims);
    }
    const positions = weights.embedding("model.embed_positions", most, dims);
    return {
      config: { tie_word_embeddings: true },
      rope: () => undefined,
      afterEmbedding: (h, step) => add(h, positions.lookup(step.positions())),
    };
  },
});

/** Transposes matrices that are stored as (in, out), as in the authors' files. */
function exchangeSides(weights: Weights, layer: string, dims: number): void {
  const qkv = weights.stored.get(`${layer}.self_attn.qkv_proj.weight`);
  if (qkv?.shape.join() !== `${dims},${3 * dims}`) return;
  for (const part of ["self_attn.qkv_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"]) {
    weights.stored.arrange([`${layer}.${part}.weight`], ([stored]) => {
      const [rows, columns] = stored!.shape as [number, number];
      const whole = { ...stored!, shape: [1, rows, columns] };
      const exchanged = transposed(stored!.name, whole, { first: 0, count: columns });
      return { ...exchanged, shape: [columns, rows] };
    });
  }
}
