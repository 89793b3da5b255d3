// Qwen 1.5 and 2 with experts, and a wider, gated shared expert.
import { z } from "zod";
import { count, integer } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { expertKeys, expertsOf } from "../layers/expert-design.ts";
import { qwen2 } from "./qwen2.ts";

export const qwen2Moe = family({
  like: qwen2,
  config: {
    ...expertKeys,
    n_routed_experts: integer,
    num_experts_per_tok: count,
    moe_intermediate_size: integer,
    shared_expert_intermediate_size: integer,
    decoder_sparse_step: count.default(1),
    mlp_only_layers: z.array(integer).default([]),
  },
  defaults: { norm_topk_prob: false },
  keys: { n_routed_experts: "num_experts" },
  design: ({ mlp_only_layers, decoder_sparse_step, ...config }) => ({
    // Unlike in Qwen 2, every other layer before max_window_layers has a window.
    slides: (layer) =>
      config.use_sliding_window === true &&
      layer % 2 === 0 &&
      layer < (config.max_window_layers ?? Infinity),
    experts: expertsOf(config, {
      isSparse: (layer) =>
        !mlp_only_layers.includes(layer) && (layer + 1) % decoder_sparse_step === 0,
      shared: {
        name: "shared_expert",
        width: config.shared_expert_intermediate_size,
        gate: "shared_expert_gate",
      },
    }),
  }),
});
