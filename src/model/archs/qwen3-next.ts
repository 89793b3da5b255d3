// Qwen 3 Next: a gated delta net in three of four layers, gated attention in the fourth, and experts.
import { count, layerTypes } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { arrangeDeltaNet, deltaNet, deltaNetKeys, deltaNetSizes } from "../layers/delta-net.ts";
import { everyOther } from "../layers/qkv.ts";
import { qwen2Moe } from "./qwen2-moe.ts";

export const qwen3Next = family({
  like: qwen2Moe,
  config: {
    ...deltaNetKeys,
    full_attention_interval: count.default(4),
    layer_types: layerTypes("linear_attention", "full_attention").nullish(),
  },
  defaults: { partial_rotary_factor: 0.25, shared_expert_intermediate_size: 0 },
  design: (config, weights) => {
    const isLinear = (layer: number) =>
      config.layer_types
        ? config.layer_types[layer] === "linear_attention"
        : (layer + 1) % config.full_attention_interval !== 0;
    // Recognizes the authors' files by PyTorch's axis order of convolutions; these files store norms as weight - 1.
    const convolution = weights.stored.get("model.layers.0.linear_attn.conv1d.weight");
    return {
      normOffset: convolution?.shape[1] === 1 ? 1 : 0,
      slides: () => false,
      attentionName: (layer) => (isLinear(layer) ? "linear_attn" : "self_attn"),
      mix: (name, layer, states) => {
        if (!isLinear(layer)) return undefined;
        const sizes = deltaNetSizes(config);
        arrangeDeltaNet(weights, name, sizes);
        return deltaNet(weights, name, states, sizes, config.rms_norm_eps);
      },
      headNorms: ["q_norm", "k_norm"],
      outputGate: { name: "gate_proj" },
      // Separates queries from gates, which files have side by side per head.
      arrange: (name, { dims, heads, headDim }) => {
        weights.matrices.check(`${name}.q_proj`, [2 * heads * headDim, dims]);
        weights.matrices.pick(`${name}.q_proj`, `${name}.gate_proj`, everyOther(heads, headDim, 1));
        weights.matrices.reorder(`${name}.q_proj`, everyOther(heads, headDim, 0));
      },
    };
  },
});
