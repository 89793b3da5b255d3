// The attention of a family's layers, as its design has it.
import type { Norm } from "../device/device.ts";
import { LoadError } from "../files/load-error.ts";
import { clip } from "../mlx/ops.ts";
import { type BaseConfig, headsOf, windowOf } from "./config.ts";
import type { AttentionDesign } from "./design.ts";
import { headwiseNorms as headwise, rotatedFirst } from "./head-changes.ts";
import {
  type AttentionBlock,
  type AttentionParts,
  type AttentionSizes,
  attentionBlock,
  headFeatures,
  makeOutputGate,
  normedProjection,
  ownHeads,
  plainNorm,
  projection,
  rmsNorm,
} from "./layers.ts";
import { arrangeHalves, arrangeNormHalves } from "./qkv.ts";
import { layerRopes, type Rope } from "./rope.ts";
import type { KvState, LayerStates } from "./states.ts";
import type { Weights } from "./weights.ts";

/** `offset`: of the norms' weights. */
export function attentionLayers(
  config: BaseConfig,
  weights: Weights,
  design: AttentionDesign,
  offset: number,
): (name: string, layer: number, states: LayerStates) => AttentionBlock {
  const { hidden_size: dims, rms_norm_eps: eps } = config;
  const { slides = () => false, kvOwners = Infinity } = design;
  const ropeOf = layerRopes(config, weights, {
    localBase: design.localRopeBase,
    rotary: design.rotaryDims,
  });
  /** By their windows. */
  const latest = new Map<number | undefined, KvState>();
  return (name, layer, states) => {
    const own = design.mix?.(name, layer, states);
    if (own) return own;
    const all = { dims, ...(design.heads?.(layer) ?? headsOf(config)) };
    if (all.heads % all.kvHeads !== 0) {
      const found = `${all.heads} heads do not fit ${all.kvHeads} KV heads`;
      throw new LoadError(`config.json: layer ${layer}: ${found}`);
    }
    const window = windowOf(config, layer, slides);
    const whole = () => ropeOf(window, all.headDim);
    const rope = design.rope ? design.rope(whole, window, layer) : whole();
    const shared = layer < kvOwners ? undefined : latest.get(window);
    design.arrange?.(name, all, layer);
    if (rope && design.rotatesNeighbours) {
      arrangeHalves(weights, name, all, rope.dims);
      const { query, key } = design.headwiseNorms ?? {};
      if (query) arrangeNormHalves(weights, `${name}.${query}`, all.heads, all, rope.dims);
      if (key) arrangeNormHalves(weights, `${name}.${key}`, all.kvHeads, all, rope.dims);
    }
    const sizes = design.hasWholeHeads ? all : ownHeads(weights, name, all);
    const headNorm = (part: string) =>
      rmsNorm(weights, `${name}.${part}`, sizes.headDim, eps, offset);
    const { attention } = design;
    const options = typeof attention === "function" ? attention(name, all, layer) : attention;
    const plain = () => plainNorm(weights, sizes.headDim, eps);
    const attend = attentionBlock(weights, name, states, sizes, {
      shared,
      ...headNorms(design, shared !== undefined, headNorm, plain),
      ...projectionParts(weights, name, sizes, design, eps, rope),
      afterwards:
        design.outputGate &&
        makeOutputGate(
          weights,
          name,
          { ...sizes, heads: headFeatures(sizes, 1) },
          design.outputGate,
        ),
      ...design.parts?.(name, sizes, { layer, rope, isSharing: shared !== undefined }),
      attention: { scale: sizes.headDim ** -0.5, ...options, window },
    });
    latest.set(window, attend.state);
    return design.around ? design.around(attend, { name, layer, sizes, states }) : attend;
  };
}

function headNorms(
  { headNorms, normsValues }: AttentionDesign,
  isSharing: boolean,
  headNorm: (part: string) => Norm,
  plain: () => Norm,
): Pick<AttentionParts, "qNorm" | "kNorm" | "vNorm"> {
  const [query, key] = headNorms === "plain" ? [] : (headNorms ?? []);
  const of = (part: string | undefined) => (part ? headNorm(part) : plain());
  return {
    qNorm: headNorms && of(query),
    kNorm: headNorms && !isSharing ? of(key) : undefined,
    vNorm: normsValues ? plain() : undefined,
  };
}

/** What is done to queries, keys and values before the step has them. */
function projectionParts(
  weights: Weights,
  name: string,
  sizes: AttentionSizes,
  { normsAllHeads, headwiseNorms, qkvLimit, rotatesFirst }: AttentionDesign,
  eps: number,
  rope: Rope | undefined,
): Pick<AttentionParts, "project" | "rope"> {
  if (rope && rotatesFirst) return rotatedFirst(projection(weights, name, sizes), sizes, rope);
  if (normsAllHeads) return { rope, project: normedProjection(weights, name, sizes, eps) };
  if (headwiseNorms) return { rope, project: headwise(weights, name, sizes, headwiseNorms) };
  if (!qkvLimit) return { rope };
  const project = projection(weights, name, sizes);
  return { rope, project: (x, fused) => clip(project(x, fused), -qkvLimit, qkvLimit) };
}
