// Granite 4: Granite with Mamba 2 in most layers, with or without experts.
import { integer, layerTypes, word } from "../config.ts";
import { expertKeys, expertsOf } from "../expert-design.ts";
import { family } from "../family.ts";
import {
  mamba2Keys,
  mamba2Mixer,
  mamba2Sizes,
  normAfterGate,
  shortMamba2Keys,
} from "../recurrent-layers.ts";
import { graniteFactors, graniteKeys } from "./granite.ts";
import { graniteNames } from "./granitemoe.ts";

/** Those without such layers leave their sizes out. */
const size = integer.nullish().transform((given) => given ?? 0);

export const graniteMoeHybrid = family({
  config: {
    ...graniteKeys,
    ...mamba2Keys,
    ...expertKeys,
    ...{ mamba_num_heads: size, mamba_head_dim: size, n_groups: size },
    ...{ ssm_state_size: size, conv_kernel: size, n_routed_experts: size },
    layer_types: layerTypes("mamba", "attention").unwrap().unwrap(),
    num_experts_per_tok: integer.nullish(),
    shared_intermediate_size: integer.nullish(),
    position_embedding_type: word.nullish(),
  },
  keys: { ...shortMamba2Keys, n_routed_experts: "num_local_experts" },
  names: {
    ...graniteNames,
    ".shared_mlp.input_linear.": ".mlp.shared_mlp.gate_up_proj.",
    ".shared_mlp.output_linear.": ".mlp.shared_mlp.down_proj.",
  },
  design: ({ layer_types, ...config }, weights) => {
    const sizes = mamba2Sizes(config, [0.001, 100]);
    const isMamba = (layer: number) => layer_types[layer] === "mamba";
    const width = config.shared_intermediate_size ?? config.intermediate_size;
    const isDense = config.n_routed_experts === 0;
    // The authors' files have the one MLP as if it stood beside experts.
    if (isDense) weights.renameParts({ ".mlp.shared_mlp.": ".mlp." });
    return {
      ...graniteFactors(config),
      rope: (whole) => (config.position_embedding_type === "nope" ? undefined : whole()),
      attentionName: (layer) => (isMamba(layer) ? "mamba" : "self_attn"),
      mix: (name, layer, states) => {
        if (!isMamba(layer)) return undefined;
        const norm = normAfterGate(
          weights,
          `${name}.norm`,
          sizes.heads * sizes.headDim,
          config.rms_norm_eps,
        );
        return mamba2Mixer(weights, name, states, sizes, norm);
      },
      hidden: width,
      experts: expertsOf(config, { shared: { name: "shared_mlp", width } }),
    };
  },
});
