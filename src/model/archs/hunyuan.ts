// Hunyuan's models with experts: head norms after RoPE, and layers that share keys and values.
import { z } from "zod";
import { count, flag, headsOf } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { routedMlp } from "../layers/experts.ts";
import { projectionWith, rotatedFirst, takenOver } from "../layers/head-changes.ts";
import { arrangeGroups } from "../layers/qkv.ts";

/** One number for all layers, or one per layer. */
const counts = z.union([count, z.array(count)]);

const ofLayer = (given: number | number[], layer: number) =>
  Array.isArray(given) ? (given[layer] ?? given[0]!) : given;

export const hunyuan = family({
  config: {
    use_qk_norm: flag.default(false),
    num_experts: count,
    moe_topk: counts,
    moe_intermediate_size: counts.nullish(),
    num_shared_expert: counts.default(1),
    use_mixed_mlp_moe: flag.default(false),
    /**
     * Cross-layer attention: groups of `cla_share_factor` layers share the first one's keys and values, before norms
     * and RoPE.
     */
    use_cla: flag.default(false),
    cla_share_factor: count.default(2),
  },
  design: (config, weights) => {
    const { hidden_size: dims, intermediate_size, num_experts, use_mixed_mlp_moe } = config;
    const { num_hidden_layers: layers, use_cla, cla_share_factor } = config;
    const shared = use_cla ? takenOver(headsOf(config), layers, cla_share_factor) : [];
    return {
      config: { tie_word_embeddings: !weights.stored.has("lm_head.weight") },
      crossings: shared,
      headNorms: config.use_qk_norm ? ["query_layernorm", "key_layernorm"] : undefined,
      arrange: (name, sizes) => arrangeGroups(weights.matrices, name, sizes),
      parts: (name, sizes, { rope, layer }) =>
        rotatedFirst(projectionWith(weights, name, sizes, layer, shared), sizes, rope!),
      mlp: (name, layer) => {
        if (num_experts === 1) return undefined;
        const shared = use_mixed_mlp_moe ? ofLayer(config.num_shared_expert, layer) : 0;
        return routedMlp(weights, name, dims, {
          count: num_experts,
          each: ofLayer(config.moe_topk, layer),
          hidden: ofLayer(config.moe_intermediate_size ?? intermediate_size, layer),
          shared: { name: "shared_mlp", width: intermediate_size * shared },
        });
      },
    };
  },
});

/** Sets two flags that all models of this type have, but that transformers leaves out of saved configurations. */
export const hunyuanV1Moe = family({
  like: hunyuan,
  defaults: { use_qk_norm: true, use_mixed_mlp_moe: true },
});
