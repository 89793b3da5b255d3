// GPT-J: attention and MLP beside each other behind one layer norm, and neighbours that rotate together.
import { z } from "zod";
import { LoadError } from "../../files/load-error.ts";
import { activationOf } from "../activations.ts";
import { headsOf, parseConfig } from "../config.ts";
import { layerNorm, plainMlp } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { GptConfig, gptKeys, gptNames } from "./gpt2.ts";

const Config = GptConfig.extend({
  /** Features of each head that rotate: all of them if null. */
  rotary_dim: z.int().positive().nullish(),
});

export function gptj(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config, gptKeys);
  const { hidden_size: dims, n_inner, rms_norm_eps: eps, rotary_dim } = parsed;
  const activation = activationOf(parsed.activation_function, "activation_function");
  weights.leaveOut(/\.attn\.(masked_)?bias$/);
  weights.rename({ "transformer.": "model." });
  weights.renameParts({
    ...gptNames,
    ".attn.out_proj.": ".self_attn.o_proj.",
    ".attn.": ".self_attn.",
    ".fc_in.": ".up_proj.",
    ".fc_out.": ".down_proj.",
  });
  const { headDim } = headsOf(parsed);
  if (rotary_dim && rotary_dim > headDim) {
    throw new LoadError(`config.json: rotary_dim: heads have ${headDim} features`);
  }
  const partial_rotary_factor = (rotary_dim ?? headDim) / headDim;
  return transformer({ ...parsed, partial_rotary_factor }, weights, {
    isParallel: true,
    norms: { attention: "input_layernorm" },
    makeNorm: (name) => layerNorm(weights, name, dims, eps),
    rotatesNeighbours: true,
    mlp: (name) => plainMlp(weights, name, dims, n_inner ?? 4 * dims, activation),
  });
}
