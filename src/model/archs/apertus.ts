// Apertus: norms on queries and keys, and an MLP without a gate whose activation has learned slopes (xIELU).
import { z } from "zod";
import { real } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { type Slope, xielu } from "../layers/activations.ts";
import { plainMlp } from "../layers/layers.ts";

const numbers = z.array(real);
const Slopes = z.object({ alpha_p: numbers, alpha_n: numbers, beta: numbers, eps: numbers });

export const apertus = family({
  config: {
    /** xIELU slopes of all layers, in the metadata of GGUF files. */
    xielu: Slopes.optional(),
  },
  design: ({ hidden_size: dims, intermediate_size: hidden, xielu: slopes }, weights) => ({
    norms: { attention: "attention_layernorm", mlp: "feedforward_layernorm" },
    headNorms: ["q_norm", "k_norm"],
    mlp: (name, layer) => {
      const slope = (part: Slope) =>
        slopes
          ? weights.arrays.number(slopes[part][layer] ?? 0)
          : weights.arrays.scalar(`${name}.act_fn.${part}`);
      return plainMlp(weights, name, dims, hidden, xielu(weights, slope));
    },
  }),
});
