// Ring 2 linear: linear attention with fixed decays in most layers, softmax attention in the others.
import { count } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { fadingLayers, groupKeys, isGlobal } from "../layers/fading-attention.ts";
import { bailingMoe } from "./bailing-moe.ts";

export const bailingMoeLinear = family({
  like: bailingMoe,
  config: { ...groupKeys, group_norm_size: count },
  design: (config, weights) => {
    const fading = fadingLayers(config, weights);
    const last = config.num_hidden_layers - 1;
    return {
      mix: (name, layer, states) =>
        isGlobal(config, layer)
          ? undefined
          : fading(name, states, 1 - Math.max(0, layer - 1) / last),
    };
  },
});
