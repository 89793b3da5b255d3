// The decoder that most families are: attention and an MLP in each layer. What a family does in its own way is a line
// of its design; what the design does not say is as in Llama.
import type { Gating, Linear } from "../device/device.ts";
import { LoadError } from "../files/load-error.ts";
import type { MlxArray } from "../mlx/array.ts";
import { add, multiply } from "../mlx/ops.ts";
import { type BaseConfig, headsOf, windowOf } from "./config.ts";
import { type DecoderOptions, decoder } from "./decoder.ts";
import { rotatedFirst } from "./head-changes.ts";
import {
  type AnyNorm,
  type AttentionBlock,
  type AttentionParts,
  type AttentionSizes,
  attentionBlock,
  type Block,
  gatedMlp,
  projection,
  rmsNorm,
} from "./layers.ts";
import type { AttentionOptions, Model } from "./model.ts";
import { arrangeHalves } from "./qkv.ts";
import { makeRope, type Rope, ropeOptions } from "./rope.ts";
import type { LayerStates } from "./states.ts";
import type { Weights } from "./weights.ts";

/** Names of a layer's norms: before attention or MLP, and behind. */
export type NormNames = {
  attention?: string;
  afterAttention?: string;
  /** Beside attention, the MLP takes what attention takes unless it says. */
  mlp?: string;
  afterMlp?: string;
};

export type Design = Omit<DecoderOptions, "norm" | "makeNorm"> & {
  /** Of the norms of layers, and of the last one. */
  makeNorm?: ((name: string) => AnyNorm) | undefined;
  norms?: NormNames | ((layer: number) => NormNames) | undefined;
  /** Attention and MLP are beside each other, and not behind. */
  isParallel?: boolean | undefined;
  /** What a branch is multiplied by before it is added. */
  branchScale?: number | undefined;
  /** Sizes of heads that differ from layer to layer. */
  heads?: ((layer: number) => Omit<AttentionSizes, "dims">) | undefined;
  /** Neighbouring features rotate together. */
  rotatesNeighbours?: boolean | undefined;
  /** RoPE of a layer: undefined where it has none. As the configuration says, unless this does. */
  rope?:
    | ((whole: () => Rope, window: number | undefined, layer: number) => Rope | undefined)
    | undefined;
  /** Whether a layer has a window, where layer_types does not say. */
  slides?: ((layer: number) => boolean) | undefined;
  /** RMS norms over each head of queries and keys, under these names. */
  headNorms?: readonly [query: string, key: string] | undefined;
  attention?: Partial<AttentionOptions> | undefined;
  /** Norms over heads come behind RoPE. */
  rotatesFirst?: boolean | undefined;
  /** Gives the tensors of a layer's attention the order that we ask for. */
  arrange?: ((name: string, sizes: AttentionSizes) => void) | undefined;
  /** Other parts of attention. `name` is that of the layer's attention. */
  parts?: ((name: string, sizes: AttentionSizes) => Partial<AttentionParts>) | undefined;
  /** Attention with more around it. */
  around?: ((attend: AttentionBlock, sizes: AttentionSizes) => AttentionBlock) | undefined;
  /** In place of attention. */
  mix?:
    | ((name: string, layer: number, states: LayerStates) => AttentionBlock | undefined)
    | undefined;
  gating?: Gating | undefined;
  /** In place of a gated MLP. */
  mlp?: ((name: string, layer: number) => Linear) | undefined;
};

const usualNorms: NormNames = { attention: "input_layernorm", mlp: "post_attention_layernorm" };

export function transformer(config: BaseConfig, weights: Weights, design: Design = {}): Model {
  const { hidden_size: dims, intermediate_size, rms_norm_eps: eps } = config;
  const { norms = usualNorms, isParallel = false, slides = () => false, gating } = design;
  const makeNorm = design.makeNorm ?? ((name: string) => rmsNorm(weights, name, dims, eps));
  const makeMlp =
    design.mlp ?? ((name) => gatedMlp(weights, name, dims, intermediate_size, gating));
  const heads = design.heads ?? (() => headsOf(config));
  // Made when it is asked for: what is in place of attention may have positions of its own.
  let made: Rope | undefined;
  const whole = () => {
    made ??= makeRope(weights, ropeOptions(config, rotaryDims(config, heads(0).headDim)));
    return made;
  };
  const attention = (name: string, layer: number, states: LayerStates) => {
    const sizes = { dims, ...heads(layer) };
    if (sizes.heads % sizes.kvHeads !== 0) {
      const found = `${sizes.heads} heads do not fit ${sizes.kvHeads} KV heads`;
      throw new LoadError(`config.json: layer ${layer}: ${found}`);
    }
    const window = windowOf(config, layer, slides);
    const rope = design.rope ? design.rope(whole, window, layer) : whole();
    design.arrange?.(name, sizes);
    if (rope && design.rotatesNeighbours) arrangeHalves(weights, name, sizes, rope.dims);
    const [qNorm, kNorm] = (design.headNorms ?? []).map((norm) =>
      rmsNorm(weights, `${name}.${norm}`, sizes.headDim, eps),
    );
    const attend = attentionBlock(weights, name, states, sizes, {
      rope,
      qNorm,
      kNorm,
      ...(rope && design.rotatesFirst
        ? rotatedFirst(projection(weights, name, sizes), sizes, rope)
        : {}),
      ...design.parts?.(name, sizes),
      attention: { scale: sizes.headDim ** -0.5, ...design.attention, window },
    });
    return design.around ? design.around(attend, sizes) : attend;
  };
  return decoder(
    config,
    weights,
    (name, layer, states) => {
      const mix =
        design.mix?.(`${name}.self_attn`, layer, states) ??
        attention(`${name}.self_attn`, layer, states);
      const mlp = makeMlp(`${name}.mlp`, layer);
      const named = Object.entries(typeof norms === "function" ? norms(layer) : norms);
      const ownNorms: Norms = Object.fromEntries(
        named.map(([place, part]) => [place, makeNorm(`${name}.${part}`)]),
      );
      return isParallel
        ? parallelBlock(mix, mlp, ownNorms)
        : sequentialBlock(mix, mlp, ownNorms, design.branchScale);
    },
    design,
  );
}

/** The features of a head that rotate: pairs of them. */
function rotaryDims(
  { rope_parameters, partial_rotary_factor }: BaseConfig,
  headDim: number,
): number {
  const share = rope_parameters?.partial_rotary_factor ?? partial_rotary_factor ?? 1;
  const rotary = 2 * Math.floor((headDim * share) / 2);
  if (rotary > 0) return rotary;
  throw new LoadError(`config.json: partial_rotary_factor: ${share} of ${headDim} is none`);
}

type Norms = { [K in keyof NormNames]: AnyNorm | undefined };

/** x + norm(attend(norm(x))), then the same with the MLP; norms are there or not. */
function sequentialBlock(mix: AttentionBlock, mlp: Linear, norms: Norms, scale = 1): Block {
  return (x, step) => {
    const h = branch(x, norms.attention, norms.afterAttention, scale, (input, fused) =>
      mix(input, step, fused),
    );
    return branch(h, norms.mlp, norms.afterMlp, scale, mlp);
  };
}

/** x + attend(norm(x)) + mlp(norm(x)) */
function parallelBlock(mix: AttentionBlock, mlp: Linear, norms: Norms): Block {
  return (x, step) => {
    const input = norms.attention ? norms.attention(x) : x;
    const h = mix(input, step, { residual: x });
    return mlp(norms.mlp ? norms.mlp(x) : input, { residual: h });
  };
}

/** RMS norms before a product, and sums behind it, are fused into it where nothing stands between. */
function branch(
  x: MlxArray,
  before: AnyNorm | undefined,
  after: AnyNorm | undefined,
  scale: number,
  compute: Linear,
): MlxArray {
  const norm = before && "eps" in before ? before : undefined;
  const input = before && !norm ? before(x) : x;
  if (!after && scale === 1) return compute(input, { norm, residual: x });
  const made = compute(input, { norm });
  const normed = after ? after(made) : made;
  return add(x, scale === 1 ? normed : multiply(normed, scale));
}
