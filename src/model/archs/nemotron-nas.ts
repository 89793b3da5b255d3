// Nemotron Super and Ultra: Llama with a search over its layers: some have no attention or MLP, or a matrix in their
// place, and they differ in heads and width.
import { z } from "zod";
import { LoadError } from "../../files/load-error.ts";
import { gatingOf } from "../activations.ts";
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import { gatedMlp } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Part = z.looseObject({
  no_op: z.boolean().default(false),
  replace_with_linear: z.boolean().default(false),
});

const Config = BaseConfig.extend({
  rope_theta: z.number().positive().default(500_000),
  hidden_act: z.string().default("silu"),
  block_configs: z.array(
    z.looseObject({
      attention: Part.extend({ n_heads_in_group: z.int().positive().nullish() }),
      ffn: Part.extend({ ffn_mult: z.number().positive().nullish() }),
    }),
  ),
});

export function nemotronNas(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, num_hidden_layers: layers, block_configs: blocks } = parsed;
  if (blocks.length !== layers) {
    throw new LoadError(`config.json: block_configs: expected ${layers} of them`);
  }
  // Of the authors' files, and of GGUF.
  weights.renameParts({ ".linear_attn.": ".linear.", ".linear_mlp.": ".linear." });
  const gating = gatingOf(parsed.hidden_act, "hidden_act");
  const sizes = (layer: number) => {
    const each = blocks[layer]!.attention.n_heads_in_group ?? 1;
    return headsOf({ ...parsed, num_key_value_heads: parsed.num_attention_heads / each });
  };
  return transformer(parsed, weights, {
    heads: sizes,
    norms: (layer) => ({
      ...(blocks[layer]!.attention.no_op ? {} : { attention: "input_layernorm" }),
      ...(blocks[layer]!.ffn.no_op ? {} : { mlp: "post_attention_layernorm" }),
    }),
    mix: (name, layer) => {
      const { no_op, replace_with_linear } = blocks[layer]!.attention;
      if (no_op) return (x) => x;
      if (!replace_with_linear) return undefined;
      if (!weights.has(`${name}.linear.weight`))
        weights.rename({ [`${name}.o_proj.`]: `${name}.linear.` });
      const linear = weights.linear(`${name}.linear`, dims, dims);
      return (x, _, fused) => linear(x, fused);
    },
    mlp: (name, layer) => {
      const { no_op, replace_with_linear, ffn_mult } = blocks[layer]!.ffn;
      if (no_op) return (x) => x;
      if (replace_with_linear) return weights.linear(`${name}.linear`, dims, dims);
      // Two thirds of it, to the next multiple of 256.
      const hidden = 256 * Math.ceil(Math.floor((2 * (ffn_mult ?? 1) * dims) / 3) / 256);
      return gatedMlp(weights, name, dims, hidden, gating);
    },
  });
}
