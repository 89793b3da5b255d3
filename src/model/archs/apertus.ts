// Apertus: norms on queries and keys, and a plain MLP with an activation that learns its slopes (xIELU).
import { z } from "zod";
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

const numbers = z.array(z.number());

const Config = BaseConfig.extend({
  /** GGUF files have these of all layers in their metadata. */
  xielu: z.object({ alpha_p: numbers, alpha_n: numbers, beta: numbers, eps: numbers }).optional(),
});
type Slopes = z.infer<typeof Config>["xielu"];

export function apertus(config: unknown, weights: Weights): Model {
  const { xielu: slopes, ...parsed } = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size } = parsed;
  return transformer(parsed, weights, {
    norms: { attention: "attention_layernorm", mlp: "feedforward_layernorm" },
    headNorms: ["q_norm", "k_norm"],
    mlp: (name, layer) => {
      const activation = xielu(weights, `${name}.act_fn`, slopes, layer);
      return plainMlp(weights, name, dims, intermediate_size, activation);
    },
  });
}

/** A parabola above 0, an exponential below, and a line through both. */
function xielu(weights: Weights, name: string, slopes: Slopes, layer: number): Activation {
  const scalar = (part: keyof NonNullable<Slopes>, change: (x: MlxArray) => MlxArray) => {
    const stored = slopes
      ? weights.number(slopes[part][layer] ?? 0)
      : weights.scalar(`${name}.${part}`);
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
