// BitNet b1.58: ternary weights, squared ReLU, and a norm before the last product of attention and MLP.
import type { MlxArray } from "../../mlx/array.ts";
import { multiply } from "../../mlx/ops.ts";
import { family } from "../design/family.ts";
import { squaredRelu } from "../layers/activations.ts";
import { dividedNorm, gatedMlp, headFeatures, ownWidth } from "../layers/layers.ts";

export const bitnet = family({
  design: ({ hidden_size: dims, intermediate_size: hidden, rms_norm_eps: eps }, weights) => ({
    parts: (name, sizes) => ({
      afterwards: dividedNorm(weights, `${name}.attn_sub_norm`, headFeatures(sizes), eps),
    }),
    mlp: (name) => {
      const own = ownWidth(weights, name, hidden);
      const norm = dividedNorm(weights, `${name}.ffn_sub_norm`, own, eps);
      const gating = (gate: MlxArray, up: MlxArray) => norm(multiply(squaredRelu(gate), up));
      return gatedMlp(weights, name, dims, hidden, gating, own);
    },
  }),
});
