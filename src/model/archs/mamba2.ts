// Mamba 2: recurrent layers and nothing else.
import { count, StepLimits, withoutAttention } from "../checkpoint/config.ts";
import type { Design } from "../design/design.ts";
import { family } from "../design/family.ts";
import { rmsNorm } from "../layers/layers.ts";
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
  design: ({ state_size, ssm_state_size, rms_norm_eps: eps, ...rest }, weights) => ({
    ...mixersOnly,
    makeNorm: (name, dims) => rmsNorm(weights, name, dims, name === "model.norm" ? eps : 1e-5),
    mix: (name, _, states) => {
      const config = { ...rest, rms_norm_eps: eps, ssm_state_size: ssm_state_size ?? state_size };
      return mamba2Layer(config, weights, name, states);
    },
  }),
});
