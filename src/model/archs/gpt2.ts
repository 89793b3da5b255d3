// GPT 2: layer norms, learned positions, one matrix for queries, keys and values.
import { z } from "zod";
import { add } from "../../mlx/ops.ts";
import { activationOf } from "../activations.ts";
import { transposed } from "../arrangement.ts";
import { BaseConfig, type Keys, parseConfig } from "../config.ts";
import { layerNorm, plainMlp } from "../layers.ts";
import type { Model } from "../model.ts";
import { type Design, transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

export const GptConfig = BaseConfig.extend({
  rms_norm_eps: z.number().positive().default(1e-5),
  max_position_embeddings: z.int().positive(),
  n_inner: z.int().positive().nullish(),
  activation_function: z.string().default("gelu_new"),
  /** Scores that are scaled otherwise, which few models have. */
  scale_attn_weights: z.literal(true).default(true),
  scale_attn_by_inverse_layer_idx: z.literal(false).default(false),
});
type GptConfig = z.infer<typeof GptConfig>;

export const gptKeys: Keys = {
  hidden_size: "n_embd",
  num_hidden_layers: "n_layer",
  num_attention_heads: "n_head",
  max_position_embeddings: "n_positions",
  rms_norm_eps: "layer_norm_epsilon",
};

/** The names of its family as ours. */
export const gptNames = {
  ".h.": ".layers.",
  ".wte.": ".embed_tokens.",
  ".wpe.": ".embed_positions.",
  ".ln_f.": ".norm.",
  ".ln_1.": ".input_layernorm.",
  ".ln_2.": ".post_attention_layernorm.",
  ".attn.c_attn.": ".self_attn.qkv_proj.",
  ".attn.c_proj.": ".self_attn.o_proj.",
  ".mlp.c_fc.": ".mlp.up_proj.",
  ".mlp.c_proj.": ".mlp.down_proj.",
};

export function gpt2(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(GptConfig, config, gptKeys);
  weights.leaveOut(/\.attn\.(masked_)?bias$/);
  weights.rename({ "transformer.": "model.", "h.": "model.h.", "ln_f.": "model.ln_f." });
  weights.rename({ "wte.": "model.wte.", "wpe.": "model.wpe." });
  weights.renameParts(gptNames);
  for (let layer = 0; layer < parsed.num_hidden_layers; layer++) {
    exchangeSides(weights, `model.layers.${layer}`, parsed.hidden_size);
  }
  return learnedPositions(parsed, weights);
}

/** With a vector for each position that is added to the tokens'. */
export function learnedPositions(config: GptConfig, weights: Weights, design: Design = {}): Model {
  const { hidden_size: dims, n_inner, rms_norm_eps: eps, max_position_embeddings } = config;
  const activation = activationOf(config.activation_function, "activation_function");
  const positions = weights.embedding("model.embed_positions", max_position_embeddings, dims);
  return transformer({ ...config, tie_word_embeddings: true }, weights, {
    makeNorm: (name) => layerNorm(weights, name, dims, eps),
    rope: () => undefined,
    mlp: (name) => plainMlp(weights, name, dims, n_inner ?? 4 * dims, activation),
    afterEmbedding: (h, step) => add(h, positions.lookup(step.positions())),
    ...design,
  });
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
