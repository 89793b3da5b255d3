// Nemotron Super and Ultra: Llama after an architecture search. Layers differ in heads and width, and some have a
// single matrix, or nothing, in place of attention or MLP.
import { z } from "zod";
import { LoadError } from "../../files/load-error.ts";
import { count, flag, headsOf, positive, word } from "../checkpoint/config.ts";
import { usualNorms } from "../design/design.ts";
import { family } from "../design/family.ts";
import { gatingOf } from "../layers/activations.ts";

const Part = z.looseObject({
  no_op: flag.default(false),
  replace_with_linear: flag.default(false),
});

export const nemotronNas = family({
  config: {
    hidden_act: word.default("silu"),
    block_configs: z.array(
      z.looseObject({
        attention: Part.extend({ n_heads_in_group: count.nullish() }),
        ffn: Part.extend({ ffn_mult: positive.nullish() }),
      }),
    ),
  },
  defaults: { rope_theta: 500_000 },
  // Names of the matrices that replace attention and MLP.
  names: { ".linear_attn.": ".linear.", ".linear_mlp.": ".linear." },
  design: (config, weights) => {
    const { hidden_size: dims, num_hidden_layers: layers, block_configs: blocks } = config;
    if (blocks.length !== layers) {
      throw new LoadError(`config.json: block_configs: expected ${layers} entries`);
    }
    return {
      gating: gatingOf(config.hidden_act, "hidden_act"),
      heads: (layer) => {
        const each = blocks[layer]!.attention.n_heads_in_group ?? 1;
        return headsOf({ ...config, num_key_value_heads: config.num_attention_heads / each });
      },
      // The width is 2 / 3 of ffn_mult * dims, rounded up to a multiple of 256.
      hidden: (layer) =>
        256 * Math.ceil(Math.floor((2 * (blocks[layer]!.ffn.ffn_mult ?? 1) * dims) / 3) / 256),
      norms: (layer) => ({
        ...(blocks[layer]!.attention.no_op ? {} : { attention: usualNorms.attention }),
        ...(blocks[layer]!.ffn.no_op ? {} : { mlp: usualNorms.mlp }),
      }),
      mix: (name, layer) => {
        const { no_op, replace_with_linear } = blocks[layer]!.attention;
        if (no_op) return (x) => x;
        if (!replace_with_linear) return undefined;
        if (!weights.matrices.has(`${name}.linear`))
          weights.stored.rename({ [`${name}.o_proj.`]: `${name}.linear.` });
        const linear = weights.linear(`${name}.linear`, dims, dims);
        return (x, _, fused) => linear(x, fused);
      },
      mlp: (name, layer) => {
        const { no_op, replace_with_linear } = blocks[layer]!.ffn;
        if (no_op) return (x) => x;
        return replace_with_linear ? weights.linear(`${name}.linear`, dims, dims) : undefined;
      },
    };
  },
});
