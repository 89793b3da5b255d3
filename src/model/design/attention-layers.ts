// Builds the attention of each layer from the family's design.
import type { Norm } from "../../device/device.ts";
import { LoadError } from "../../files/load-error.ts";
import { clip } from "../../mlx/ops.ts";
import { type BaseConfig, headsOf, windowOf } from "../checkpoint/config.ts";
import { layerRopes, type Rope } from "../contract/rope.ts";
import type { KvState, LayerStates } from "../contract/states.ts";
import type { Crossing } from "../layers/crossings.ts";
import { headwiseNorms as headwise, rotatedFirst } from "../layers/head-changes.ts";
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
} from "../layers/layers.ts";
import { arrangeHalves, arrangeNormHalves } from "../layers/qkv.ts";
import type { Weights } from "../weights/weights.ts";
import type { AttentionDesign } from "./design.ts";

/** Per window, the crossing that takes the last written keys and values to later layers with this window. */
export type KvCrossings = ReadonlyMap<number | undefined, Crossing>;

export function kvCrossings(config: BaseConfig, design: AttentionDesign): KvCrossings {
  const { slides = () => false, kvOwners = Infinity } = design;
  const found = new Map<number | undefined, Crossing>();
  const windows = Array.from({ length: config.num_hidden_layers }, (_, layer) =>
    windowOf(config, layer, slides),
  );
  for (const [to, window] of windows.entries()) {
    const from = windows.lastIndexOf(window, kvOwners - 1);
    if (to < kvOwners || from < 0) continue;
    const { kvHeads, headDim } = design.heads?.(from) ?? headsOf(config);
    found.set(window, { from, to, width: 2 * kvHeads * headDim });
  }
  return found;
}

/** Returns a function that builds a layer's attention. `offset` is added to the norms' weights. */
export function attentionLayers(
  config: BaseConfig,
  weights: Weights,
  design: AttentionDesign,
  offset: number,
  crossings: KvCrossings,
): (name: string, layer: number, states: LayerStates) => AttentionBlock {
  const { hidden_size: dims, rms_norm_eps: eps } = config;
  const { slides = () => false, kvOwners = Infinity } = design;
  const ropeOf = layerRopes(config, weights, {
    localBase: design.localRopeBase,
    rotary: design.rotaryDims,
  });
  /** KV state of the latest layer with each window. */
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
    const crossing = crossings.get(window);
    const shared = layer < kvOwners ? undefined : latest.get(window);
    // If a layer shares keys and values that another rank computed, it takes and stores them for later layers too.
    const taken = layer < kvOwners || shared ? undefined : crossing;
    const isSharing = shared !== undefined || taken !== undefined;
    design.arrange?.(name, all, layer);
    if (rope && design.rotatesNeighbours) {
      arrangeHalves(weights.matrices, name, all, rope.dims);
      const { query, key } = design.headwiseNorms ?? {};
      if (query) arrangeNormHalves(weights.stored, `${name}.${query}`, all.heads, all, rope.dims);
      if (key) arrangeNormHalves(weights.stored, `${name}.${key}`, all.kvHeads, all, rope.dims);
    }
    const sizes = ownHeads(weights, name, all);
    const headNorm = (part: string, of = name) =>
      rmsNorm(weights, `${of}.${part}`, sizes.headDim, eps, offset);
    const keysOf = taken ? name.replace(`.${layer}.`, `.${taken.from}.`) : name;
    const { attention } = design;
    const options = typeof attention === "function" ? attention(name, all, layer) : attention;
    const plain = () => plainNorm(weights, sizes.headDim, eps);
    const { outputGate } = design;
    const heads = headFeatures(sizes, 1);
    const attend = attentionBlock(weights, name, states, sizes, {
      shared,
      taken,
      handsOn: weights.stage && crossing?.from === layer ? crossing : undefined,
      ...headNorms(design, shared ? undefined : keysOf, headNorm, plain),
      ...projectionParts(weights, name, sizes, design, eps, rope),
      afterwards: outputGate && makeOutputGate(weights, name, { ...sizes, heads }, outputGate),
      ...design.parts?.(name, sizes, { layer, rope, isSharing }),
      attention: { scale: sizes.headDim ** -0.5, ...options, window },
    });
    latest.set(window, attend.state);
    return design.around ? design.around(attend, { name, layer, sizes, states }) : attend;
  };
}

/** Makes head norms. The key norm is the one of the attention named `keysOf`; none if this layer writes no keys. */
function headNorms(
  { headNorms, normsValues }: AttentionDesign,
  keysOf: string | undefined,
  headNorm: (part: string, of?: string) => Norm,
  plain: () => Norm,
): Pick<AttentionParts, "qNorm" | "kNorm" | "vNorm"> {
  const [query, key] = headNorms === "plain" ? [] : (headNorms ?? []);
  const norm = (part: string | undefined, of?: string) => (part ? headNorm(part, of) : plain());
  return {
    qNorm: headNorms && norm(query),
    kNorm: headNorms && keysOf ? norm(key, keysOf) : undefined,
    vNorm: normsValues ? plain() : undefined,
  };
}

/** Returns the projection with the design's norms and clipping, and the RoPE that attention still has to apply. */
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
