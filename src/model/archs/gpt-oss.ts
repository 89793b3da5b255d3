// gpt-oss: experts in every layer, a window in every other one, and an attention sink per head.
import { count, positive } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { clippedSwiglu } from "../layers/activations.ts";
import { expertKeys, expertsOf } from "../layers/expert-design.ts";
import { arrangeInterleaved } from "../layers/expert-layouts.ts";

export const gptOss = family({
  config: { ...expertKeys, n_routed_experts: count, swiglu_limit: positive.default(7) },
  defaults: {
    num_experts_per_tok: 4,
    head_dim: 64,
    rms_norm_eps: 1e-5,
    rope_theta: 150_000,
    sliding_window: 128,
  },
  keys: { n_routed_experts: "num_local_experts" },
  // Drops the ending of the sinks' name, which only GGUF files have.
  names: { ".sinks.weight": ".sinks", ".mlp.router.": ".mlp.gate." },
  design: (config, weights) => ({
    slides: (layer) => layer % 2 === 0,
    attention: (name, { heads }) => ({ sinks: weights.arrays.tensor(`${name}.sinks`, [heads]) }),
    arrangeMlp: (name) => arrangeInterleaved(weights.stored, `${name}.experts`),
    gating: clippedSwiglu(config.swiglu_limit),
    experts: expertsOf(config, { hidden: config.intermediate_size }),
  }),
});
