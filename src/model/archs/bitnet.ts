// BitNet b1.58: ternary weights, squared ReLU, and a norm before the last product of attention and MLP.
import { multiply } from "../../mlx/ops.ts";
import { squaredRelu } from "../activations.ts";
import { family } from "../family.ts";
import { gatedMlp, rmsNorm } from "../layers.ts";

export const bitnet = family({
  design: ({ hidden_size: dims, intermediate_size: hidden, rms_norm_eps: eps }, weights) => ({
    parts: (name) => ({ afterwards: rmsNorm(weights, `${name}.attn_sub_norm`, dims, eps) }),
    mlp: (name) => {
      const norm = rmsNorm(weights, `${name}.ffn_sub_norm`, hidden, eps);
      return gatedMlp(weights, name, dims, hidden, (gate, up) =>
        norm(multiply(squaredRelu(gate), up)),
      );
    },
  }),
});
