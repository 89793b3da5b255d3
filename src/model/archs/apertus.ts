// Apertus: norms on queries and keys, and a plain MLP with an activation that learns its slopes (xIELU).
import type { MlxArray } from "../../mlx/array.ts";
import {
  add,
  expm1,
  greater,
  logAddExp,
  minimum,
  multiply,
  reshape,
  subtract,
  where,
} from "../../mlx/ops.ts";
import type { Activation } from "../activations.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import { plainMlp } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

export function apertus(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(BaseConfig, config);
  const { hidden_size: dims, intermediate_size } = parsed;
  return transformer(parsed, weights, {
    norms: { attention: "attention_layernorm", mlp: "feedforward_layernorm" },
    headNorms: ["q_norm", "k_norm"],
    mlp: (name) =>
      plainMlp(weights, name, dims, intermediate_size, xielu(weights, `${name}.act_fn`)),
  });
}

/** A parabola above 0, an exponential below, and a line through both. */
function xielu(weights: Weights, name: string): Activation {
  const scalar = (part: string, change: (x: MlxArray) => MlxArray) => {
    weights.arrange([`${name}.${part}`], ([stored]) => ({ ...stored!, shape: [1] }));
    const stored = weights.tensor(`${name}.${part}`, [1]);
    return weights.computed(() => reshape(change(stored), []));
  };
  const softPlus = (x: MlxArray) => logAddExp(x, 0);
  const [beta, eps] = [scalar("beta", (x) => x), scalar("eps", (x) => x)];
  const above = scalar("alpha_p", softPlus);
  const below = scalar("alpha_n", (x) => add(softPlus(x), reshape(beta, [1])));
  return (x) => {
    const curve = where(
      greater(x, 0),
      multiply(multiply(x, x), above),
      multiply(subtract(expm1(minimum(x, eps)), x), below),
    );
    return add(curve, multiply(x, beta));
  };
}
