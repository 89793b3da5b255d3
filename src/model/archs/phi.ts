// Phi 1, 1.5 and 2: attention and MLP beside each other behind one layer norm, and biases everywhere.
import { z } from "zod";
import { activationOf } from "../activations.ts";
import { positive, share } from "../config.ts";
import { family } from "../family.ts";

export const phi = family({
  config: {
    rms_norm_eps: positive.default(1e-5),
    partial_rotary_factor: share.default(0.5),
    hidden_act: z.string().default("gelu_new"),
    /** Norms of queries and keys, which none of them has. */
    qk_layernorm: z.literal(false).default(false),
  },
  keys: { rms_norm_eps: "layer_norm_eps" },
  names: {
    "model.final_layernorm.": "model.norm.",
    ".self_attn.dense.": ".self_attn.o_proj.",
    ".mlp.fc1.": ".mlp.up_proj.",
    ".mlp.fc2.": ".mlp.down_proj.",
  },
  design: ({ hidden_act }) => ({
    isParallel: true,
    isLayerNorm: true,
    norms: { attention: "input_layernorm" },
    activation: activationOf(hidden_act, "hidden_act"),
  }),
});
