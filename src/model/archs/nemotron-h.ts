// Nemotron H: each layer is one of Mamba 2, attention, an MLP or experts, as its pattern says.

import { z } from "zod";
import { LoadError } from "../../files/load-error.ts";
import { flag, integer, word } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { squaredRelu } from "../layers/activations.ts";
import { expertKeys, expertsOf } from "../layers/expert-design.ts";
import { routedMlp } from "../layers/experts.ts";
import { plainMlp } from "../layers/layers.ts";
import { mamba2Keys, mamba2Layer } from "../layers/mamba2-layers.ts";
import { mixersOnly } from "./mamba2.ts";

/** Kinds of layers by the letters and words that configurations use for them. */
const kinds = new Map([
  ["M", "mamba"],
  ["mamba", "mamba"],
  ["conv", "mamba"],
  ["linear_attention", "mamba"],
  ["*", "attention"],
  ["attention", "attention"],
  ["full_attention", "attention"],
  ["-", "mlp"],
  ["mlp", "mlp"],
  ["E", "experts"],
  ["moe", "experts"],
]);

export const nemotronH = family({
  config: {
    ...mamba2Keys,
    ...expertKeys,
    num_hidden_layers: integer.nullish(),
    hybrid_override_pattern: z.union([word, z.array(word)]).nullish(),
    layers_block_type: z.array(word).nullish(),
    layer_types: z.array(word).nullish(),
    n_routed_experts: integer.nullish(),
    moe_shared_expert_intermediate_size: integer.nullish(),
    /** Size of the experts' smaller space; undefined if they read the hidden state. */
    moe_latent_size: integer.nullish(),
    norm_topk_prob: flag.nullish(),
  },
  defaults: { rms_norm_eps: 1e-5 },
  keys: { rms_norm_eps: "layer_norm_epsilon" },
  design: ({ hybrid_override_pattern, layers_block_type, layer_types, ...config }, weights) => {
    const { hidden_size: dims, intermediate_size: hidden, moe_latent_size: latent } = config;
    const given = hybrid_override_pattern || layers_block_type || layer_types || [];
    const layers = [...given].map((kind) => kinds.get(kind));
    if (layers.length === 0 || layers.includes(undefined)) {
      const expected = "expected a letter a layer, of M, *, - and E";
      throw new LoadError(`config.json: hybrid_override_pattern: ${expected}`);
    }
    const sharedWidth = config.moe_shared_expert_intermediate_size ?? hidden;
    const experts = expertsOf(
      { ...config, norm_topk_prob: config.norm_topk_prob ?? false },
      {
        scores: "sigmoid",
        correction: "gate.e_score_correction_bias",
        activation: squaredRelu,
        latent: latent
          ? { size: latent, into: "fc1_latent_proj", back: "fc2_latent_proj" }
          : undefined,
        shared: { name: "shared_experts", width: config.n_shared_experts ? sharedWidth : 0 },
      },
    );
    return {
      ...mixersOnly,
      config: { num_hidden_layers: layers.length },
      rope: () => undefined,
      mix: (name, layer, states) => {
        if (layers[layer] === "attention") return undefined;
        if (layers[layer] === "mamba") return mamba2Layer(config, weights, name, states);
        const mlp =
          layers[layer] === "mlp"
            ? plainMlp(weights, name, dims, hidden, squaredRelu)
            : routedMlp(weights, name, dims, experts);
        return (x, _, fused) => mlp(x, fused);
      },
    };
  },
});
