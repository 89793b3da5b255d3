// OLMo Hybrid: most layers have a gated delta net, with norms before it and before the MLP. The others have OLMo 2's
// attention, with norms after attention and MLP.
import { flag, headsOf, layerTypes, positive } from "../checkpoint/config.ts";
import { makeRope } from "../contract/rope.ts";
import { normsBehind, usualNorms } from "../design/design.ts";
import { family } from "../design/family.ts";
import { deltaNet, deltaNetKeys, deltaNetSizes } from "../layers/delta-net.ts";
import { joinConvolutions } from "../layers/recurrent-layers.ts";

export const olmoHybrid = family({
  config: {
    ...deltaNetKeys,
    /** Whether a delta net's betas (how strongly a token overwrites the state) range up to 2 instead of 1. */
    linear_allow_neg_eigval: flag.default(false),
    layer_norm_epsilon: positive.default(1e-5),
    layer_types: layerTypes("linear_attention", "full_attention").nullish(),
    /** RoPE base; null for no RoPE. */
    rope_theta: positive.nullish().default(10_000),
  },
  names: {
    ".attention_layer_norm.": ".input_layernorm.",
    ".feedforward_layer_norm.": ".post_attention_layernorm.",
    ".linear_attn.g_proj.": ".linear_attn.in_proj_z.",
    ".linear_attn.b_proj.": ".linear_attn.in_proj_b.",
    ".linear_attn.a_proj.": ".linear_attn.in_proj_a.",
    ".linear_attn.o_norm.": ".linear_attn.norm.",
    ".linear_attn.o_proj.": ".linear_attn.out_proj.",
  },
  design: ({ rope_theta: base, layer_types, ...config }, weights) => {
    const dims = headsOf(config).headDim;
    const rope = base == null ? undefined : makeRope(weights, { dims, base });
    const attends = (layer: number) =>
      layer_types ? layer_types[layer] === "full_attention" : layer % 4 === 3;
    return {
      attentionName: (layer) => (attends(layer) ? "self_attn" : "linear_attn"),
      norms: (layer) => (attends(layer) ? normsBehind : usualNorms),
      normsAllHeads: true,
      rope: () => rope,
      mix: (name, layer, states) => {
        if (attends(layer)) return undefined;
        joinConvolutions(weights, name);
        const [sizes, eps] = [deltaNetSizes(config), config.layer_norm_epsilon];
        const most = config.linear_allow_neg_eigval ? 2 : 1;
        return deltaNet(weights, name, states, sizes, eps, most);
      },
    };
  },
});
