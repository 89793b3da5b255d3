// Granite 4: Granite with Mamba 2 in most layers, with or without experts.
import { integer, layerTypes, word } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { expertsOf } from "../layers/expert-design.ts";
import { mamba2Keys, mamba2Layer, shortMamba2Keys } from "../layers/mamba2-layers.ts";
import { graniteMoe } from "./granitemoe.ts";

/** A size of Mamba 2, which models without Mamba 2 leave out. */
const size = integer.nullish().transform((given) => given ?? 0);

export const graniteMoeHybrid = family({
  like: graniteMoe,
  config: {
    ...mamba2Keys,
    mamba_num_heads: size,
    mamba_head_dim: size,
    n_groups: size,
    ssm_state_size: size,
    conv_kernel: size,
    layer_types: layerTypes("linear_attention", "full_attention"),
    shared_intermediate_size: integer.nullish(),
    position_embedding_type: word.nullish(),
  },
  keys: shortMamba2Keys,
  names: {
    ".shared_mlp.": ".mlp.shared_mlp.",
    ".shared_mlp.input_linear.": ".shared_mlp.gate_up_proj.",
    ".shared_mlp.output_linear.": ".shared_mlp.down_proj.",
  },
  design: ({ layer_types, ...config }, weights) => {
    const isMamba = (layer: number) => layer_types[layer] === "linear_attention";
    const width = config.shared_intermediate_size ?? config.intermediate_size;
    // Renames the MLP of models without experts, which their files call shared_mlp.
    if (!config.n_routed_experts) weights.stored.renameParts({ ".mlp.shared_mlp.": ".mlp." });
    return {
      rope: (whole) => (config.position_embedding_type === "nope" ? undefined : whole()),
      attentionName: (layer) => (isMamba(layer) ? "mamba" : "self_attn"),
      mix: (name, layer, states) =>
        isMamba(layer) ? mamba2Layer(config, weights, name, states) : undefined,
      hidden: width,
      experts: expertsOf(config, { shared: { name: "shared_mlp", width } }),
    };
  },
});
