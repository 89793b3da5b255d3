// Gemma 3n: AltUp (several hidden states per token, of which each layer computes one and predicts the others), LAuReL
// (a low-rank branch beside attention), sparse activations, per-layer embeddings, and last layers that read earlier
// layers' keys and values. Loads only the text decoder.
import { z } from "zod";
import { slice, squeeze } from "../../mlx/ops.ts";
import { count, integer, kvOwnersOf, positive, real } from "../checkpoint/config.ts";
import { altUpBlock, altUpKeys, mergeStreams, spreadStreams } from "../design/altup-layers.ts";
import { normsAround } from "../design/design.ts";
import { family, textPart } from "../design/family.ts";
import { layerInputKeys, layerInputs } from "../design/layer-inputs.ts";
import { normalQuantile, sparseGeglu } from "../layers/activations.ts";
import { gatedMlp, ownWidth } from "../layers/layers.ts";
import { localRopeKeys } from "./gemma3-text.ts";

const text = family({
  config: {
    ...localRopeKeys,
    ...layerInputKeys,
    ...altUpKeys,
    /** Width of the MLP: one number for all layers, or one per layer. */
    intermediate_size: z.union([count, z.array(count)]),
    num_kv_shared_layers: integer,
    final_logit_softcapping: positive.nullish(),
    /** Fraction of activations that are set to zero, per layer. */
    activation_sparsity_pattern: z.array(real).nullish(),
    /** Sparsity in GGUF files: activations below mean + value * standard deviation become 0. One value per layer. */
    activation_deviations: z.array(real.nullable()).nullish(),
  },
  design: (config, weights) => {
    const { hidden_size: dims, intermediate_size: hidden, activation_deviations } = config;
    const { num_hidden_layers: layers, num_kv_shared_layers: sharing } = config;
    const { isFirst = true, isLast = true } = weights.stage ?? {};
    return {
      config: { intermediate_size: [hidden].flat()[0]! },
      norms: normsAround,
      headNorms: ["q_norm", "k_norm"],
      normsValues: true,
      localRopeBase: config.rope_local_base_freq,
      attention: { scale: 1 },
      kvOwners: kvOwnersOf(layers, sharing, "num_kv_shared_layers"),
      mlp: (name, layer) => {
        const sparsity = config.activation_sparsity_pattern?.[layer] ?? 0;
        const quantile = sparsity > 0 ? normalQuantile(sparsity) : undefined;
        const deviations = activation_deviations ? activation_deviations[layer] : quantile;
        const width = Array.isArray(hidden) ? hidden[layer]! : hidden;
        const own = ownWidth(weights, name, width);
        const gating = deviations == null ? "geglu" : sparseGeglu(weights, own, deviations);
        return gatedMlp(weights, name, dims, width, gating, own);
      },
      combine: (parts) => altUpBlock(config, weights, parts),
      embeddingScale: dims ** 0.5,
      streams: config.altup_num_inputs,
      afterEmbedding: isFirst ? spreadStreams(config, weights) : undefined,
      layerInputs: {
        width: config.hidden_size_per_layer_input,
        make: () => {
          const inputs = layerInputs(config, weights);
          return (tokens, h) => inputs(tokens, squeeze(slice(h, 1, 0, 1), 1));
        },
      },
      beforeNorm: isLast ? mergeStreams(config, weights) : undefined,
      logitCap: config.final_logit_softcapping,
    };
  },
});

export const gemma3n = textPart(text, { isBare: true });
