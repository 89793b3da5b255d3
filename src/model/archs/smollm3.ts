// SmolLM 3: Llama without RoPE in every fourth layer.
import { z } from "zod";
import { LoadError } from "../../files/load-error.ts";
import { count, integer } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";

export const smollm3 = family({
  config: {
    no_rope_layer_interval: count.default(4),
    /** Per layer, 1 if RoPE is applied, in spite of the key's name. */
    no_rope_layers: z.array(integer).nullish(),
  },
  design: ({ no_rope_layer_interval: interval, no_rope_layers: listed, num_hidden_layers }) => {
    if (listed && listed.length !== num_hidden_layers) {
      throw new LoadError(`config.json: no_rope_layers: expected ${num_hidden_layers} numbers`);
    }
    const rotates = (layer: number) =>
      listed ? listed[layer] !== 0 : (layer + 1) % interval !== 0;
    return { rope: (whole, _, layer) => (rotates(layer) ? whole() : undefined) };
  },
});
