// A family's design: each field is a way in which it differs from Llama. What a design does not say is as in Llama.
import type { Gating, Linear } from "../../device/device.ts";
import type { MlxArray } from "../../mlx/array.ts";
import type { BaseConfig } from "../checkpoint/config.ts";
import type { AttentionOptions } from "../contract/model.ts";
import type { Rope } from "../contract/rope.ts";
import type { LayerStates } from "../contract/states.ts";
import type { Activation } from "../layers/activations.ts";
import type { ExpertDesign } from "../layers/expert-design.ts";
import type { HeadwiseNorms } from "../layers/head-changes.ts";
import type {
  AnyNorm,
  AttentionBlock,
  AttentionParts,
  AttentionSizes,
  Block,
  OutputGate,
} from "../layers/layers.ts";
import type { DecoderOptions } from "./decoder.ts";

export type Design = DecoderOptions & NormDesign & AttentionDesign & MlpDesign & LayerDesign;

/** Names of a layer's norms: before attention or MLP, and behind. */
export type NormNames = {
  attention?: string;
  afterAttention?: string;
  /** Beside attention, the MLP takes what attention takes unless it says. */
  mlp?: string;
  afterMlp?: string;
};

export const usualNorms = {
  attention: "input_layernorm",
  mlp: "post_attention_layernorm",
} as const satisfies NormNames;

/** Behind attention and MLP only. */
export const normsBehind = {
  afterAttention: "post_attention_layernorm",
  afterMlp: "post_feedforward_layernorm",
} as const satisfies NormNames;

/** Before and behind. */
export const normsAround = {
  attention: "input_layernorm",
  mlp: "pre_feedforward_layernorm",
  ...normsBehind,
} as const satisfies NormNames;

export type NormDesign = {
  norms?: NormNames | ((layer: number) => NormNames) | undefined;
  /** Layer norms in place of RMS norms. */
  isLayerNorm?: boolean | undefined;
  /** Added to the weights of norms: some families store them as their distance from 1. */
  normOffset?: number | undefined;
  /** Of the norms of layers, and of the last one. */
  makeNorm?: ((name: string, dims: number) => AnyNorm) | undefined;
};

export type AttentionDesign = {
  /** What files call it, in a layer. */
  attentionName?: string | ((layer: number) => string) | undefined;
  /** Sizes of heads that differ from layer to layer. */
  heads?: ((layer: number) => Omit<AttentionSizes, "dims">) | undefined;
  /** Neighbouring features rotate together. */
  rotatesNeighbours?: boolean | undefined;
  /** RoPE of a layer: undefined where it has none. As the configuration says, unless this does. */
  rope?:
    | ((whole: () => Rope, window: number | undefined, layer: number) => Rope | undefined)
    | undefined;
  /** Features of each head that rotate, where the configuration gives their number. */
  rotaryDims?: number | null | undefined;
  /** The base of RoPE in layers with a window, where that is another. */
  localRopeBase?: number | undefined;
  /** Whether a layer has a window, where layer_types does not say. */
  slides?: ((layer: number) => boolean) | undefined;
  /** RMS norms over each head of queries and keys, under these names or without weights. */
  headNorms?: readonly [query: string, key: string] | "plain" | undefined;
  /** The same with weights of their own for each head, and any kind of norm. */
  headwiseNorms?: HeadwiseNorms | undefined;
  /** Norms without weights over each head of values. */
  normsValues?: boolean | undefined;
  /** Norms over all heads of queries at once, and of keys: q_norm and k_norm. */
  normsAllHeads?: boolean | undefined;
  /** Norms over heads come behind RoPE. */
  rotatesFirst?: boolean | undefined;
  /** Queries, keys and values stay within (-limit, limit). */
  qkvLimit?: number | null | undefined;
  attention?:
    | Partial<AttentionOptions>
    | ((name: string, sizes: AttentionSizes, layer: number) => Partial<AttentionOptions>)
    | undefined;
  outputGate?: OutputGate | undefined;
  /** Layers from this one on read the keys and values of the last layer before it that sees as far. */
  kvOwners?: number | undefined;
  /** Gives the tensors of a layer's attention the order that we ask for. */
  arrange?: ((name: string, sizes: AttentionSizes, layer: number) => void) | undefined;
  /** Other parts of attention. `name` is that of the layer's attention. */
  parts?:
    | ((name: string, sizes: AttentionSizes, layer: AttentionLayer) => Partial<AttentionParts>)
    | undefined;
  /** Attention with more around it. */
  around?: ((attend: AttentionBlock, layer: AroundLayer) => AttentionBlock) | undefined;
  /** In place of attention, where it gives something. */
  mix?:
    | ((name: string, layer: number, states: LayerStates) => AttentionBlock | undefined)
    | undefined;
};

export type AroundLayer = {
  /** Of its attention. */
  name: string;
  layer: number;
  sizes: AttentionSizes;
  states: LayerStates;
};

export type AttentionLayer = {
  layer: number;
  rope: Rope | undefined;
  /** It reads the keys and values of another. */
  isSharing: boolean;
};

export type MlpDesign = {
  /** What files call it, in a layer; none where layers have only attention. */
  mlpName?: string | undefined;
  /** Its width, where that is not intermediate_size. */
  hidden?: number | ((layer: number) => number) | undefined;
  gating?: Gating | undefined;
  /** Without a gate: down(activation(up(x))) */
  activation?: Activation | undefined;
  experts?: ExpertDesign | undefined;
  /** Gives the tensors of a layer's MLP the names and the order that we ask for. */
  arrangeMlp?: ((name: string) => void) | undefined;
  /** In place of both, where it gives something. */
  mlp?: ((name: string, layer: number) => Linear | undefined) | undefined;
};

export type LayerDesign = {
  /** What the configuration means in Llama's words. */
  config?: Partial<BaseConfig> | undefined;
  /** Attention and MLP are beside each other, and not behind. */
  isParallel?: boolean | undefined;
  /** What a branch is multiplied by before it is added. */
  branchScale?: number | undefined;
  /** The same of what the MLP makes alone. */
  mlpScale?: number | undefined;
  /** In place of a plain sum of a branch and what it was made of. */
  sum?: ((x: MlxArray, branch: MlxArray) => MlxArray) | undefined;
  /** A layer of its parts, in its own way. */
  combine?: ((parts: LayerParts) => Block) | undefined;
  /** The whole layer in its own way. */
  layer?: ((name: string, layer: number, states: LayerStates) => Block) | undefined;
  /** Layers behind the last predict further tokens, which is not used. */
  hasLayersBehind?: boolean | undefined;
};

export type LayerParts = {
  name: string;
  layer: number;
  mix: AttentionBlock;
  mlp: Linear;
  norms: Norms;
};

export type Norms = { [K in keyof NormNames]: AnyNorm | undefined };
