// nanochat: norms without weights, also on queries and keys, squared ReLU, and a soft cap on the logits.
import { positive } from "../checkpoint/config.ts";
import { backwards } from "../contract/rope.ts";
import { family } from "../design/family.ts";
import { squaredRelu } from "../layers/activations.ts";
import { plainNorm } from "../layers/layers.ts";

export const nanochat = family({
  config: { final_logit_softcapping: positive.default(15) },
  defaults: { rms_norm_eps: 1e-5 },
  names: {
    ".attn.c_q.": ".self_attn.q_proj.",
    ".attn.c_k.": ".self_attn.k_proj.",
    ".attn.c_v.": ".self_attn.v_proj.",
  },
  design: (config, weights) => {
    const norm = plainNorm(weights, config.hidden_size, config.rms_norm_eps);
    return {
      makeNorm: () => norm,
      // The model applies head norms after RoPE. Here they come first, with the same result: rotation keeps a
      // vector's length.
      headNorms: "plain",
      rope: (whole) => backwards(weights, whole()),
      activation: squaredRelu,
      afterEmbedding: norm,
      logitCap: config.final_logit_softcapping,
    };
  },
});
