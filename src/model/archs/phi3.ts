// Phi 3, 3.5 and 4-mini: one matrix for queries, keys and values, one for the MLP's two halves.
import { z } from "zod";
import type { Linear } from "../../device/device.ts";
import { BaseConfig, headsOf, parseConfig, windowOf } from "../config.ts";
import { decoder } from "../decoder.ts";
import { attentionBlock, joinedMlp, preNormBlock, rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { makeRope, type Rope, ropeOptions } from "../rope.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  /** The share of each head that RoPE rotates. */
  partial_rotary_factor: z.number().positive().max(1).default(1),
  max_position_embeddings: z.int().positive().default(131_072),
  original_max_position_embeddings: z.int().positive().default(4096),
});
type Config = z.infer<typeof Config>;

export function phi3(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size, rms_norm_eps: eps } = parsed;
  const sizes = { dims, ...headsOf(parsed) };
  const outputs = (sizes.heads + 2 * sizes.kvHeads) * sizes.headDim;
  const rope = phiRope(parsed, weights, sizes.headDim);
  return decoder(parsed, weights, (name, layer, states) =>
    preNormBlock(
      attentionBlock(weights, `${name}.self_attn`, states, sizes, {
        rope,
        project: weights.linear(`${name}.self_attn.qkv_proj`, dims, outputs),
        attention: {
          scale: sizes.headDim ** -0.5,
          window: windowOf(parsed, layer, () => true),
        },
      }),
      fusedMlp(weights, `${name}.mlp`, dims, intermediate_size),
      rmsNorm(weights, `${name}.input_layernorm`, dims, eps),
      rmsNorm(weights, `${name}.post_attention_layernorm`, dims, eps),
    ),
  );
}

/** The length it was trained with first stands beside the scaling, not in it. */
function phiRope(config: Config, weights: Weights, headDim: number): Rope {
  const { original_max_position_embeddings, partial_rotary_factor } = config;
  const options = ropeOptions(config, Math.floor(headDim * partial_rotary_factor));
  const { scaling } = options;
  return makeRope(weights, {
    ...options,
    scaling: scaling && { original_max_position_embeddings, ...scaling },
  });
}

function fusedMlp(weights: Weights, name: string, dims: number, hidden: number): Linear {
  const gateUp = weights.linear(`${name}.gate_up_proj`, dims, 2 * hidden);
  return joinedMlp(gateUp, weights.linear(`${name}.down_proj`, hidden, dims), "swiglu");
}
