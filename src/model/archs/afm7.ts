// Apple's foundation model of 7B: norms on queries and keys behind RoPE, keys and values rounded to 8 bits, and last
// layers that read those of the layer before them.
import { z } from "zod";
import { LoadError } from "../../files/load-error.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { astype, clip, divide, multiply, reshape, round } from "../../mlx/ops.ts";
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import { decoder } from "../decoder.ts";
import { changedHeads } from "../head-changes.ts";
import {
  type AttentionParts,
  attentionBlock,
  gatedMlp,
  preNormBlock,
  projection,
  rmsNorm,
} from "../layers.ts";
import type { Model } from "../model.ts";
import { arrangeHalves, halves } from "../qkv.ts";
import { makeRope, ropeOptions, rotated } from "../rope.ts";
import type { KvState } from "../states.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  num_kv_reuse_layers: z.int().min(0),
  hidden_dim_scale_factor: z.number().positive().default(3.25),
  rope_theta: z.number().positive().default(50_000),
  rms_norm_eps: z.number().positive().default(1e-5),
});

/** Of the norms of heads. */
const HEAD_EPS = 1e-5;

export function afm7(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config, {
    hidden_size: "hidden_dim",
    num_hidden_layers: "num_layers",
    num_attention_heads: "num_heads",
    num_key_value_heads: "num_kv_heads",
  });
  const { hidden_size: dims, num_hidden_layers, num_kv_reuse_layers, rms_norm_eps: eps } = parsed;
  const owners = num_hidden_layers - num_kv_reuse_layers;
  if (owners < 1) throw new LoadError("config.json: num_kv_reuse_layers: no layer has keys");
  const hidden = Math.floor(dims * parsed.hidden_dim_scale_factor);
  const sizes = { dims, ...headsOf(parsed) };
  const { heads, headDim } = sizes;
  const rope = makeRope(weights, ropeOptions(parsed, headDim));

  weights.rename({
    "model.embedding.": "model.embed_tokens.",
    "model.output_norm.": "model.norm.",
  });
  weights.renameParts({ ".self_attn.out_proj.": ".self_attn.o_proj." });
  const headNorm = (name: string) => {
    weights.reorder(name, halves(1, headDim, headDim));
    return rmsNorm(weights, name, headDim, HEAD_EPS);
  };
  let last: KvState | undefined;
  return decoder({ ...parsed, tie_word_embeddings: true }, weights, (name, layer, states) => {
    const shares = layer >= owners;
    if (shares) weights.rename({ [`model.kv_reuse_layers.${layer - owners}.`]: `${name}.` });
    const own = `${name}.self_attn`;
    arrangeHalves(weights, own, sizes);
    const qNorm = headNorm(`${own}.q_norm`);
    const place = (x: MlxArray, positions: MlxArray) => rotated(x, rope, positions);
    let project: AttentionParts["project"];
    if (shares) {
      const product = weights.linear(`${own}.q_proj`, dims, heads * headDim);
      project = (x, fused, step) => {
        const q = reshape(product(x, fused), [-1, heads, headDim]);
        return reshape(qNorm(place(q, step.positions())), [-1, heads * headDim]);
      };
    } else {
      const kNorm = headNorm(`${own}.k_norm`);
      const roundKeys = rounding(weights, `${own}.quant_key_scale`);
      const roundValues = rounding(weights, `${own}.quant_value_scale`);
      project = changedHeads(projection(weights, own, sizes), sizes, ({ q, k, v }, step) => {
        const positions = step.positions();
        return {
          q: qNorm(place(q, positions)),
          k: roundKeys(kNorm(place(k, positions))),
          v: roundValues(v),
        };
      });
    }
    const attend = attentionBlock(weights, own, states, sizes, {
      project,
      shared: shares ? last : undefined,
      attention: { scale: headDim ** -0.5 },
    });
    last = attend.state;
    return preNormBlock(
      attend,
      gatedMlp(weights, `${name}.mlp`, dims, hidden),
      rmsNorm(weights, `${name}.input_layernorm`, dims, eps),
      rmsNorm(weights, `${name}.post_attention_layernorm`, dims, eps),
    );
  });
}

/** To 8 bits of this scale, as it was trained. */
function rounding(weights: Weights, name: string): (x: MlxArray) => MlxArray {
  const scale = weights.scalar(name, "float32");
  return (x) => {
    const steps = clip(round(divide(astype(x, "float32"), scale)), -128, 127);
    return astype(multiply(steps, scale), x.dtype);
  };
}
