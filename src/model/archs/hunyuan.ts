// Hunyuan's models with experts: norms on queries and keys behind RoPE, and layers that take over keys and values.
import { z } from "zod";
import type { Linear } from "../../device/device.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { concatenate, slice } from "../../mlx/ops.ts";
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import { routedMlp } from "../experts.ts";
import { rotatedFirst } from "../head-changes.ts";
import {
  type AttentionBlock,
  attentionBlock,
  gatedMlp,
  type Projection,
  projection,
  rmsNorm,
} from "../layers.ts";
import type { Model } from "../model.ts";
import { arrangeGroups } from "../qkv.ts";
import { makeRope } from "../rope.ts";
import type { LayerStates } from "../states.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const count = z.int().positive();
/** One for all layers, or one a layer. */
const counts = z.union([count, z.array(count)]);

const Config = BaseConfig.extend({
  use_qk_norm: z.boolean().default(false),
  rope_scaling: z.looseObject({ alpha: z.number().positive().optional() }).nullish(),
  num_experts: count,
  moe_topk: counts,
  moe_intermediate_size: counts.nullish(),
  num_shared_expert: counts.default(1),
  use_mixed_mlp_moe: z.boolean().default(false),
  /** Of so many layers, all take over the keys and values of the first, before norms and RoPE. */
  use_cla: z.boolean().default(false),
  cla_share_factor: count.default(2),
});
type Config = z.infer<typeof Config>;

const ofLayer = (given: number | number[], layer: number) =>
  Array.isArray(given) ? (given[layer] ?? given[0]!) : given;

export function hunyuan(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { rope_scaling: _, ...rest } = parsed;
  const isTied = !weights.has("lm_head.weight");
  return transformer({ ...rest, tie_word_embeddings: isTied }, weights, {
    mix: attentionLayers(parsed, weights),
    mlp: (name, layer) => makeMlp(parsed, weights, name, layer),
  });
}

function attentionLayers(config: Config, weights: Weights) {
  const { hidden_size: dims, rms_norm_eps: eps, rope_scaling, use_qk_norm } = config;
  const sizes = { dims, ...headsOf(config) };
  const { heads, kvHeads, headDim } = sizes;
  const [queries, whole] = [heads * headDim, (heads + 2 * kvHeads) * headDim];
  // Contexts are longer by a larger base.
  const base = config.rope_theta * (rope_scaling?.alpha ?? 1) ** (headDim / (headDim - 2));
  const rope = makeRope(weights, { dims: headDim, base });
  let shared: MlxArray;
  const projectionOf = (name: string, layer: number): Projection => {
    if (!config.use_cla) return projection(weights, name, sizes);
    if (layer % config.cla_share_factor === 0) {
      const project = projection(weights, name, sizes);
      return (x, fused) => {
        const qkv = project(x, fused);
        shared = slice(qkv, 1, queries, whole);
        return qkv;
      };
    }
    const toQueries = weights.linear(`${name}.q_proj`, dims, queries);
    return (x, fused) => concatenate([toQueries(x, fused), shared], -1);
  };
  return (name: string, layer: number, states: LayerStates): AttentionBlock => {
    arrangeGroups(weights, name, sizes);
    const norm = (part: string) =>
      use_qk_norm ? rmsNorm(weights, `${name}.${part}_layernorm`, headDim, eps) : undefined;
    return attentionBlock(weights, name, states, sizes, {
      ...rotatedFirst(projectionOf(name, layer), sizes, rope),
      qNorm: norm("query"),
      kNorm: norm("key"),
      attention: { scale: headDim ** -0.5 },
    });
  };
}

function makeMlp(config: Config, weights: Weights, name: string, layer: number): Linear {
  const { hidden_size: dims, intermediate_size, num_experts: experts } = config;
  if (experts === 1) return gatedMlp(weights, name, dims, intermediate_size);
  const hidden = ofLayer(config.moe_intermediate_size ?? intermediate_size, layer);
  const shared = config.use_mixed_mlp_moe ? ofLayer(config.num_shared_expert, layer) : 0;
  weights.rename({ [`${name}.gate.wg.`]: `${name}.gate.` });
  return routedMlp(
    weights,
    name,
    { experts, dims, hidden },
    { each: ofLayer(config.moe_topk, layer), scores: "softmax", isNormalized: true, scale: 1 },
    { name: `${name}.shared_mlp`, width: intermediate_size * shared },
  );
}
