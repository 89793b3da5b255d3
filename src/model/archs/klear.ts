// Klear: experts and a shared MLP, mixed by two coefficients per token.
import { add, astype, multiply, slice, softmax } from "../../mlx/ops.ts";
import { count } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { routedMlp } from "../layers/experts.ts";
import { gatedMlp } from "../layers/layers.ts";
import { qwen3Moe } from "./qwen3-moe.ts";

export const klear = family({
  like: qwen3Moe,
  config: { n_shared_experts: count },
  design: ({ hidden_size: dims, n_shared_experts }, weights, base) => ({
    mlp: (name, layer) => {
      const experts = base.experts!;
      if (!experts.isSparse?.(layer)) return undefined;
      const routing = { scores: "sigmoid", correction: "expert_bias" } as const;
      const routed = routedMlp(weights, name, dims, { ...experts, ...routing });
      const width = experts.hidden * n_shared_experts;
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
  }),
});
