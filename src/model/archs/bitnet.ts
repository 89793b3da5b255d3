// BitNet b1.58: ternary weights, squared ReLU, and a norm before the last product of attention and MLP.
import { multiply } from "../../mlx/ops.ts";
import { squaredRelu } from "../activations.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import { gatedMlp, rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

export function bitnet(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(BaseConfig, config);
  const { hidden_size: dims, intermediate_size: hidden, rms_norm_eps: eps } = parsed;
  return transformer(parsed, weights, {
    parts: (name) => ({ afterwards: rmsNorm(weights, `${name}.attn_sub_norm`, dims, eps) }),
    mlp: (name) => {
      const norm = rmsNorm(weights, `${name}.ffn_sub_norm`, hidden, eps);
      return gatedMlp(weights, name, dims, hidden, (gate, up) =>
        norm(multiply(squaredRelu(gate), up)),
      );
    },
  });
}
