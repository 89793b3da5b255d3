// Ring 2.5: linear attention with fixed decays in most layers, latent attention in the others. Ling 3, which has the
// same model_type, is told apart by its class.
import { z } from "zod";
import { flag } from "../checkpoint/config.ts";
import { type Architecture, family } from "../design/family.ts";
import { fadingLayers, isGlobal } from "../layers/fading-attention.ts";
import { latentKeys, latentLayers } from "../layers/latent-layers.ts";
import { bailingMoeLinear } from "./bailing-moe-linear.ts";
import { bailingMoeV3 } from "./bailing-moe-v3.ts";

const ring = family({
  like: bailingMoeLinear,
  config: {
    ...latentKeys,
    rope_interleave: z.literal(true).default(true),
    use_qk_norm: flag.default(true),
    score_function: z.enum(["softmax", "sigmoid"]).default("sigmoid"),
    moe_router_enable_expert_bias: flag.default(true),
  },
  defaults: { partial_rotary_factor: 0.5 },
  design: (config, weights) => {
    const latent = latentLayers(config, weights, { eps: config.rms_norm_eps });
    const fading = fadingLayers(config, weights);
    const last = Math.max(1, config.num_hidden_layers - 1);
    return {
      mix: (name, layer, states) =>
        isGlobal(config, layer)
          ? latent(name, layer, states)
          : fading(name, states, 1 - layer / last),
    };
  },
});

/** Recognizes Ling 3 by its class name, which differs between the authors' files and transformers'. */
const V3 = z.looseObject({
  architectures: z.tuple([z.enum(["BailingMoeV3ForCausalLM", "BailingHybridForCausalLM"])]),
});

export const bailingHybrid: Architecture = (config, weights) =>
  V3.safeParse(config).success ? bailingMoeV3(config, weights) : ring(config, weights);
