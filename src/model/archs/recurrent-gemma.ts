// RecurrentGemma (Griffin): a gated linear recurrence per channel in most layers, attention within a window in the
// others.
import { count, flag, headsOf, layerTypes, real } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { gatedRecurrence, recurrenceKeys } from "../layers/gated-recurrence.ts";

const kinds = layerTypes("recurrent", "attention").min(1);

export const recurrentGemma = family({
  config: {
    ...recurrenceKeys,
    attention_window_size: count.default(2048),
    logits_soft_cap: real.nullish(),
    embeddings_scale_by_sqrt_dim: flag.default(true),
    /** Pattern of layer kinds, repeated over all layers; some configurations prefix the key with an underscore. */
    block_types: kinds.nullish(),
    _block_types: kinds.nullish(),
  },
  design: (config, weights) => {
    const { block_types, _block_types } = config;
    const types = block_types ?? _block_types ?? ["recurrent", "recurrent", "attention"];
    return {
      config: { sliding_window: config.attention_window_size },
      normOffset: 1,
      norms: { attention: "temporal_pre_norm", mlp: "channel_pre_norm" },
      attentionName: "temporal_block",
      slides: () => true,
      rotaryDims: headsOf(config).headDim / 2,
      mix: (name, layer, states) =>
        types[layer % types.length] === "attention"
          ? undefined
          : gatedRecurrence(config, weights, name, states),
      mlpName: "mlp_block",
      hidden: config.intermediate_size / 2,
      gating: "geglu",
      embeddingScale: config.embeddings_scale_by_sqrt_dim ? config.hidden_size ** 0.5 : 1,
      logitCap: config.logits_soft_cap,
    };
  },
});
