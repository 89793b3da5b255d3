// Klear: experts and an MLP that all tokens go through, mixed by a share of each that follows from the token.
import { z } from "zod";
import type { Linear } from "../../device/device.ts";
import { add, astype, multiply, slice, softmax } from "../../mlx/ops.ts";
import { parseConfig } from "../config.ts";
import { nameExperts, routedMlp } from "../experts.ts";
import { gatedMlp } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { isSparse, MoeConfig } from "./qwen3-moe.ts";

const Config = MoeConfig.extend({ n_shared_experts: z.int().positive() });
type Config = z.infer<typeof Config>;

export function klear(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size } = parsed;
  return transformer(parsed, weights, {
    headNorms: ["q_norm", "k_norm"],
    mlp: (name, layer) =>
      isSparse(parsed, layer)
        ? mixedMlp(parsed, weights, name)
        : gatedMlp(weights, name, dims, intermediate_size),
  });
}

function mixedMlp(config: Config, weights: Weights, name: string): Linear {
  const { hidden_size: dims, num_experts: experts, moe_intermediate_size: hidden } = config;
  nameExperts(weights, name);
  const routed = routedMlp(
    weights,
    name,
    { experts, dims, hidden },
    {
      each: config.num_experts_per_tok,
      scores: "sigmoid",
      correction: `${name}.expert_bias`,
      isNormalized: config.norm_topk_prob,
      scale: 1,
    },
  );
  const shared = gatedMlp(
    weights,
    `${name}.shared_experts`,
    dims,
    hidden * config.n_shared_experts,
  );
  const coefficient = weights.linear(`${name}.coefficient`, dims, 2);
  return (input, { norm, residual } = {}) => {
    const x = norm ? norm(input) : input;
    const shares = astype(softmax(astype(coefficient(x), "float32")), x.dtype); // (T, 2)
    const share = (index: number) => slice(shares, 1, index, index + 1);
    const made = add(multiply(routed(x), share(0)), multiply(shared(x), share(1)));
    return residual ? add(residual, made) : made;
  };
}
