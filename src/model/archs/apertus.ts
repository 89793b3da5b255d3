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
import { real } from "../config.ts";
import { family } from "../family.ts";
import { plainMlp } from "../layers.ts";
import type { Weights } from "../weights.ts";

const numbers = z.array(real);
const Slopes = z.object({ alpha_p: numbers, alpha_n: numbers, beta: numbers, eps: numbers });

export const apertus = family({
  config: {
    /** GGUF files have these of all layers in their metadata. */
    xielu: Slopes.optional(),
  },
  design: ({ hidden_size: dims, intermediate_size: hidden, xielu: slopes }, weights) => ({
    norms: { attention: "attention_layernorm", mlp: "feedforward_layernorm" },
    headNorms: ["q_norm", "k_norm"],
    mlp: (name, layer) => {
      const slope = (part: keyof z.infer<typeof Slopes>) =>
        slopes
          ? weights.number(slopes[part][layer] ?? 0)
          : weights.scalar(`${name}.act_fn.${part}`);
      return plainMlp(weights, name, dims, hidden, xielu(weights, slope));
    },
  }),
});

/** A parabola above 0, an exponential below, and a line through both. */
function xielu(
  weights: Weights,
  slope: (part: "alpha_p" | "alpha_n" | "beta" | "eps") => MlxArray,
): Activation {
  const scalar = (make: () => MlxArray) => weights.computed(() => reshape(make(), []));
  const [stored, eps] = [slope("beta"), slope("eps")];
  const [above, below] = [slope("alpha_p"), slope("alpha_n")];
  const beta = scalar(() => stored);
  const least = scalar(() => eps);
  const rise = scalar(() => logAddExp(above, 0));
  const fall = scalar(() => add(logAddExp(below, 0), stored));
  return (x) => {
    const curve = where(
      greater(x, 0),
      multiply(multiply(x, x), rise),
      multiply(subtract(expm1(minimum(x, least)), x), fall),
    );
    return add(curve, multiply(x, beta));
  };
}
