// Kimi K3: Kimi Linear with experts of a smaller vector, and layers that take a mixture of what earlier ones have made
// in place of its sum. Of files that also see, the part that reads and writes text.
import { z } from "zod";
import type { Gating, Norm } from "../../device/device.ts";
import type { MlxArray } from "../../mlx/array.ts";
import {
  astype,
  concatenate,
  expandDims,
  multiply,
  sigmoid,
  softmax,
  sum,
  tanh,
} from "../../mlx/ops.ts";
import { count, flag, real } from "../config.ts";
import type { Design } from "../design.ts";
import { family, textPart } from "../family.ts";
import { latentLayers } from "../latent-layers.ts";
import type { Weights } from "../weights.ts";
import { kimiDelta, kimiLinear } from "./kimi-linear.ts";

const text = family({
  like: kimiLinear,
  config: {
    hidden_act: z.literal("situ").default("situ"),
    activation_situ_beta: real.nullish(),
    activation_situ_linear_beta: real.nullish(),
    /** So many layers add to one sum, which later ones mix; all to one where there is none. */
    attn_res_block_size: count.nullish(),
    mla_use_nope: z.literal(true).default(true),
    mla_use_output_gate: flag.default(false),
    moe_router_activation_func: z.literal("sigmoid").default("sigmoid"),
    routed_expert_hidden_size: count.nullish(),
    latent_moe_use_norm: flag.default(false),
  },
  names: { "_res.proj_weight": "_res_proj.weight", "_res.norm_weight": "_res_norm.weight" },
  design: (config, weights, base) => {
    const { hidden_size: dims, rms_norm_eps: eps, routed_expert_hidden_size: latent } = config;
    const attention = latentLayers(config, weights, { rope: undefined });
    const norm = config.latent_moe_use_norm ? { name: "routed_expert_norm", eps } : undefined;
    return {
      mix: (name, layer, states) => {
        const delta = kimiDelta(config, weights, name, layer, states);
        if (delta || !config.mla_use_output_gate) return delta ?? attention(name, layer, states);
        const width = config.num_attention_heads * config.v_head_dim;
        const gate = weights.linear(`${name}.g_proj`, dims, width);
        return attention(name, layer, states, { gate: (x) => sigmoid(gate(x)) });
      },
      gating: situ(config.activation_situ_beta || 1, config.activation_situ_linear_beta),
      experts: base.experts && {
        ...base.experts,
        latent: latent
          ? {
              size: latent,
              into: "routed_expert_down_proj",
              back: "routed_expert_up_proj",
              norm,
            }
          : undefined,
      },
      ...(config.attn_res_block_size
        ? mixedResiduals(weights, dims, eps, config.attn_res_block_size)
        : {}),
    };
  },
});

export const kimiK3 = textPart(text, { isBare: true });

/** `size` layers add to one sum. Attention, MLPs and the last norm take a mixture of all sums before. */
function mixedResiduals(weights: Weights, dims: number, eps: number, size: number): Design {
  // In the order in which they come.
  let sums: MlxArray[] = [];
  const mixture = (name: string) => {
    const mix = residualMixture(weights, name, dims, eps);
    return (partial: MlxArray) => mix(sums, partial);
  };
  return {
    combine: ({ name, layer, mix, mlp, norms }) => {
      const beforeAttention = mixture(`${name}.self_attention_res`);
      const beforeMlp = mixture(`${name}.mlp_res`);
      const [inputNorm, postNorm] = [norms.attention as Norm, norms.mlp as Norm];
      return (x, step) => {
        if (layer === 0) sums = [];
        const taken = beforeAttention(x);
        const begins = layer % size === 0;
        if (begins) sums = [...sums, x];
        const h = mix(taken, step, { norm: inputNorm, residual: begins ? undefined : x });
        return mlp(beforeMlp(h), { norm: postNorm, residual: h });
      };
    },
    beforeNorm: mixture("model.output_attn_res"),
  };
}

function mixtureWeight(weights: Weights, name: string, dims: number): MlxArray {
  // GGUF files have the product.
  const product = `${name}_score.weight`;
  if (weights.has(product)) return weights.tensor(product, [dims], "float32");
  const scale = weights.tensor(`${name}_norm.weight`, [dims], "float32");
  const direction = weights.vector(`${name}_proj.weight`, dims, "float32");
  return weights.computed(() => multiply(scale, direction));
}

/** A softmax over sums and what is made now: how much of each is taken, of each token. */
function residualMixture(weights: Weights, name: string, dims: number, eps: number) {
  const weight = mixtureWeight(weights, name, dims);
  return (sums: readonly MlxArray[], partial: MlxArray): MlxArray => {
    if (sums.length === 0) return partial;
    const all = concatenate(
      [...sums, partial].map((each) => expandDims(each, 0)),
      0,
    ); // (sums, T, D)
    const normed = weights.device.rmsNorm(astype(all, "float32"), undefined, eps);
    const shares = softmax(sum(multiply(normed, weight), -1, true), 0); // (sums, T, 1)
    return astype(sum(multiply(all, shares), 0), partial.dtype);
  };
}

/** Both halves are squeezed, and the gate is multiplied by its sigmoid. */
function situ(beta: number, most: number | null | undefined): Gating {
  const squeezed = (x: MlxArray, cap: number) => multiply(tanh(multiply(x, 1 / cap)), cap);
  return (gate, up) => {
    const [g, u] = [astype(gate, "float32"), astype(up, "float32")];
    const opened = multiply(squeezed(g, beta), sigmoid(g));
    return astype(multiply(opened, most == null ? u : squeezed(u, most)), up.dtype);
  };
}
