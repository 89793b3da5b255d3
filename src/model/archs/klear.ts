// Klear: experts and an MLP that all tokens go through, mixed by a share of each that follows from the token.
import { add, astype, multiply, slice, softmax } from "../../mlx/ops.ts";
import { count } from "../config.ts";
import { routedMlp } from "../experts.ts";
import { family } from "../family.ts";
import { gatedMlp } from "../layers.ts";
import { qwenExperts, qwenMoeConfig } from "./qwen3-moe.ts";

export const klear = family({
  config: { ...qwenMoeConfig, n_shared_experts: count },
  design: (config, weights) => {
    const { hidden_size: dims, moe_intermediate_size, n_shared_experts } = config;
    const corrected = { scores: "sigmoid", correction: "expert_bias" } as const;
    const experts = { ...qwenExperts(config), ...corrected };
    return {
      headNorms: ["q_norm", "k_norm"],
      mlp: (name, layer) => {
        if (!experts.isSparse?.(layer)) return undefined;
        const routed = routedMlp(weights, name, dims, experts);
        const width = moe_intermediate_size * n_shared_experts;
        const shared = gatedMlp(weights, `${name}.shared_experts`, dims, width);
        const coefficient = weights.linear(`${name}.coefficient`, dims, 2);
        return (input, { norm, residual } = {}) => {
          const x = norm ? norm(input) : input;
          const shares = astype(softmax(astype(coefficient(x), "float32")), x.dtype); // (T, 2)
          const share = (index: number) => slice(shares, 1, index, index + 1);
          const made = add(multiply(routed(x), share(0)), multiply(shared(x), share(1)));
          return residual ? add(residual, made) : made;
        };
      },
    };
  },
});
