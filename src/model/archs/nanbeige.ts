// Nanbeige: Llama whose layers are passed several times, each time with keys and values of their own.
import { z } from "zod";
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import { decoder } from "../decoder.ts";
import { attentionBlock, type Block, gatedMlp, preNormBlock, rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { makeRope, ropeOptions } from "../rope.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  num_loops: z.int().positive().max(16).default(1),
  /** One for each loop behind the first. */
  loop_loss_weights: z.array(z.number()).max(15).nullish(),
  skip_loop_final_norm: z.boolean().default(false),
  /** What no published model has. */
  enable_double_loop_split: z.literal(false).default(false),
  loop_share_kv: z.literal(false).default(false),
  enable_depth_attention: z.literal(false).default(false),
});

export function nanbeige(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size, rms_norm_eps: eps, loop_loss_weights } = parsed;
  const { num_hidden_layers: layers, skip_loop_final_norm } = parsed;
  const loops = loop_loss_weights?.length ? loop_loss_weights.length + 1 : parsed.num_loops;
  const sizes = { dims, ...headsOf(parsed) };
  const rope = makeRope(weights, ropeOptions(parsed, sizes.headDim));
  const attention = { scale: sizes.headDim ** -0.5 };
  const norm = rmsNorm(weights, "model.norm", dims, eps);
  /** Makes the block of a layer's next loop. */
  const next: (() => Block)[] = [];
  return decoder(
    { ...parsed, num_hidden_layers: layers * loops },
    weights,
    (name, at, states) => {
      const layer = at % layers;
      if (at < layers) {
        let attend = attentionBlock(weights, `${name}.self_attn`, states, sizes, {
          rope,
          attention,
        });
        const mlp = gatedMlp(weights, `${name}.mlp`, dims, intermediate_size);
        const inputNorm = rmsNorm(weights, `${name}.input_layernorm`, dims, eps);
        const postNorm = rmsNorm(weights, `${name}.post_attention_layernorm`, dims, eps);
        next[layer] = () => {
          const block = preNormBlock(attend, mlp, inputNorm, postNorm);
          attend = attend.again();
          return block;
        };
      }
      const block = next[layer]!();
      const endsLoop = layer === layers - 1 && at < layers * loops - 1;
      return endsLoop && !skip_loop_final_norm ? (x, step) => norm(block(x, step)) : block;
    },
    { norm },
  );
}
