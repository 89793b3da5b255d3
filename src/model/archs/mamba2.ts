// Mamba 2: only recurrent layers.
import { count, StepLimits, withoutAttention } from "../checkpoint/config.ts";
import type { Design } from "../design/design.ts";
import { family } from "../design/family.ts";
import { mamba2Keys, mamba2Layer } from "../layers/mamba2-layers.ts";

export const mixersOnly: Design = {
  attentionName: "mixer",
  norms: { attention: "norm" },
  mlpName: "",
};

export const mamba2 = family({
  config: {
    ...withoutAttention,
    ...mamba2Keys,
    state_size: count,
    ssm_state_size: count.nullish(),
    time_step_limit: StepLimits,
  },
  defaults: { rms_norm_eps: 1e-5, max_position_embeddings: 2056 },
  keys: {
    mamba_num_heads: "num_heads",
    mamba_head_dim: "head_dim",
    rms_norm_eps: "layer_norm_epsilon",
  },
  design: ({ state_size, ssm_state_size, ...rest }, weights) => ({
    ...mixersOnly,
    mix: (name, _, states) => {
      const config = { ...rest, ssm_state_size: ssm_state_size ?? state_size };
      return mamba2Layer(config, weights, name, states);
    },
  }),
});
