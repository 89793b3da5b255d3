// Talkie: norms without weights, a learned factor on each branch and each head of queries, and the embedding added
// again in each layer.
import type { MlxArray } from "../../mlx/array.ts";
import { add, multiply, reshape } from "../../mlx/ops.ts";
import { flag, real } from "../checkpoint/config.ts";
import { backwards } from "../contract/rope.ts";
import { family } from "../design/family.ts";
import type { Crossing } from "../layers/crossings.ts";
import { changedHeads } from "../layers/head-changes.ts";
import { headFeatures, plainNorm, projection } from "../layers/layers.ts";

export const talkie = family({
  config: {
    /** Whether RoPE rotates in the usual direction. GGUF files need it: half of their Q and K rows are negated. */
    rotates_forwards: flag.default(false),
    /** Factor on logits in GGUF files, in place of the tensor lm_head_gain. */
    logit_gain: real.nullish(),
  },
  defaults: { rope_theta: 1_000_000, rms_norm_eps: 2 ** -23 },
  leftOut: /rotary|(cos|sin)$/,
  names: {
    ".attn.attn_query.": ".self_attn.q_proj.",
    ".attn.attn_key.": ".self_attn.k_proj.",
    ".attn.attn_value.": ".self_attn.v_proj.",
    ".attn.attn_resid.": ".self_attn.o_proj.",
    ".attn.head_gain.": ".self_attn.head_gain.",
    ".mlp.mlp_gate.": ".mlp.gate_proj.",
    ".mlp.mlp_linear.": ".mlp.up_proj.",
    ".mlp.mlp_resid.": ".mlp.down_proj.",
  },
  design: ({ hidden_size: dims, rms_norm_eps: eps, ...config }, weights) => {
    weights.stored.rename({ lm_head_gain: "model.lm_head_gain" });
    if (weights.stored.has("lm_head")) weights.stored.rename({ lm_head: "lm_head.weight" });
    const norm = plainNorm(weights, dims, eps);
    /** The normed embedding, which every layer adds again. */
    const embedded: Crossing = { from: -1, to: config.num_hidden_layers - 1, width: dims };
    const logitGain =
      config.logit_gain == null
        ? weights.arrays.scalar("model.lm_head_gain.w_g")
        : weights.arrays.number(config.logit_gain);
    return {
      config: { tie_word_embeddings: false },
      makeNorm: () => norm,
      rope: (whole) => (config.rotates_forwards ? whole() : backwards(weights, whole())),
      parts: (name, sizes) => {
        const stored = weights.part(`${name}.head_gain.head_g`, headFeatures(sizes, 1));
        const headGain = weights.arrays.computed(() => reshape(stored, [sizes.heads, 1]));
        const headNorm = plainNorm(weights, sizes.headDim, eps);
        // The model applies head norms after RoPE. Here they come first, with the same result: rotation keeps a
        // vector's length.
        const change = ({ q, k }: { q: MlxArray; k: MlxArray }) => {
          return { q: multiply(headNorm(q), headGain), k: headNorm(k) };
        };
        return { project: changedHeads(projection(weights, name, sizes), sizes, change) };
      },
      combine: ({ name, mix, mlp }) => {
        const [attentionGain, mlpGain, skip] = ["attn_gain", "mlp_gain", "embed_skip"].map((part) =>
          weights.arrays.scalar(`${name}.${part}.a_g`),
        ) as [MlxArray, MlxArray, MlxArray];
        return (x, step) => {
          const h = add(x, multiply(mix(x, step, { norm }), attentionGain));
          const made = add(h, multiply(mlp(h, { norm }), mlpGain));
          return add(made, multiply(embedded.value!, skip));
        };
      },
      crossings: [embedded],
      afterEmbedding: (h) => {
        embedded.value = norm(h);
        return embedded.value;
      },
      afterLogits: (logits) => multiply(logits, logitGain),
    };
  },
});
