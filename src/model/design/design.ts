// A family's design: each field is a deviation from Llama.
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

/** Names of a layer's norms before and after attention and MLP. */
export type NormNames = {
  attention?: string;
  afterAttention?: string;
  /** Norm of the MLP's input. In parallel layers without this norm, the MLP shares attention's input. */
  mlp?: string;
  afterMlp?: string;
};

export const usualNorms = {
  attention: "input_layernorm",
  mlp: "post_attention_layernorm",
} as const satisfies NormNames;

/** Norms only after attention and MLP. */
export const normsBehind = {
  afterAttention: "post_attention_layernorm",
  afterMlp: "post_feedforward_layernorm",
} as const satisfies NormNames;

/** Norms both before and after attention and MLP. */
export const normsAround = {
  attention: "input_layernorm",
  mlp: "pre_feedforward_layernorm",
  ...normsBehind,
} as const satisfies NormNames;

export type NormDesign = {
  norms?: NormNames | ((layer: number) => NormNames) | undefined;
  /** Whether norms are layer norms instead of RMS norms. */
  isLayerNorm?: boolean | undefined;
  /** Offset that is added to the weights of norms: some families store weight - 1. */
  normOffset?: number | undefined;
  /** Makes the norms of layers and the last norm, in place of the usual ones. */
  makeNorm?: ((name: string, dims: number) => AnyNorm) | undefined;
};

export type AttentionDesign = {
  /** Name of a layer's attention in files. */
  attentionName?: string | ((layer: number) => string) | undefined;
  /** Head counts and sizes of a layer, if they differ by layer. */
  heads?: ((layer: number) => Omit<AttentionSizes, "dims">) | undefined;
  /** Whether RoPE rotates neighbouring features together, instead of a head's halves. */
  rotatesNeighbours?: boolean | undefined;
  /** RoPE of a layer, in place of the configuration's; returns undefined for no RoPE. */
  rope?:
    | ((whole: () => Rope, window: number | undefined, layer: number) => Rope | undefined)
    | undefined;
  /** Number of rotary features per head, for configurations that give it. */
  rotaryDims?: number | null | undefined;
  /** RoPE base of layers with a window, if it differs from the other layers'. */
  localRopeBase?: number | undefined;
  /** Whether a layer has a window, for configurations without layer_types. */
  slides?: ((layer: number) => boolean) | undefined;
  /** Names of the RMS norms over each head of queries and keys; "plain" for norms without weights. */
  headNorms?: readonly [query: string, key: string] | "plain" | undefined;
  /** Norms of any kind over each head, with separate weights per head. */
  headwiseNorms?: HeadwiseNorms | undefined;
  /** Whether each head of values has an RMS norm without weights. */
  normsValues?: boolean | undefined;
  /** Whether the norms q_norm and k_norm span all heads of queries, and all heads of keys. */
  normsAllHeads?: boolean | undefined;
  /** Whether head norms follow RoPE instead of preceding it. */
  rotatesFirst?: boolean | undefined;
  /** Limit to which queries, keys and values are clipped: [-limit, limit]. */
  qkvLimit?: number | null | undefined;
  attention?:
    | Partial<AttentionOptions>
    | ((name: string, sizes: AttentionSizes, layer: number) => Partial<AttentionOptions>)
    | undefined;
  outputGate?: OutputGate | undefined;
  /** Number of layers that write keys and values. The others read those of the last writer with the same window. */
  kvOwners?: number | undefined;
  /** Rearranges the tensors of a layer's attention from the family's order to that of qkv.ts. */
  arrange?: ((name: string, sizes: AttentionSizes, layer: number) => void) | undefined;
  /** Returns parts that replace the default parts of a layer's attention; `name` is its name in files. */
  parts?:
    | ((name: string, sizes: AttentionSizes, layer: AttentionLayer) => Partial<AttentionParts>)
    | undefined;
  /** Wraps the attention block. */
  around?: ((attend: AttentionBlock, layer: AroundLayer) => AttentionBlock) | undefined;
  /** Replaces attention in layers for which this returns a block. */
  mix?:
    | ((name: string, layer: number, states: LayerStates) => AttentionBlock | undefined)
    | undefined;
};

export type AroundLayer = {
  /** Name of the layer's attention. */
  name: string;
  layer: number;
  sizes: AttentionSizes;
  states: LayerStates;
};

export type AttentionLayer = {
  layer: number;
  rope: Rope | undefined;
  /** Whether the layer reads another layer's keys and values. */
  isSharing: boolean;
};

export type MlpDesign = {
  /** Name of a layer's MLP in files; undefined if layers have only attention. */
  mlpName?: string | undefined;
  /** Width of the MLP, if it differs from intermediate_size. */
  hidden?: number | ((layer: number) => number) | undefined;
  gating?: Gating | undefined;
  /** Activation of MLPs without a gate: down(activation(up(x))) */
  activation?: Activation | undefined;
  experts?: ExpertDesign | undefined;
  /** Renames and rearranges the tensors of a layer's MLP. */
  arrangeMlp?: ((name: string) => void) | undefined;
  /** Replaces MLP and experts in layers for which this returns a function. */
  mlp?: ((name: string, layer: number) => Linear | undefined) | undefined;
};

export type LayerDesign = {
  /** Values that replace those of the common configuration keys. */
  config?: Partial<BaseConfig> | undefined;
  /** Whether attention and MLP read the same input in parallel. */
  isParallel?: boolean | undefined;
  /** Factor on the outputs of attention and MLP before they are added. */
  branchScale?: number | undefined;
  /** Factor on the MLP's output. */
  mlpScale?: number | undefined;
  /** Replaces the residual sum x + branch. */
  sum?: ((x: MlxArray, branch: MlxArray) => MlxArray) | undefined;
  /** Builds a layer from its parts. */
  combine?: ((parts: LayerParts) => Block) | undefined;
  /** Builds a layer in place of everything else in this design. */
  layer?: ((name: string, layer: number, states: LayerStates) => Block) | undefined;
  /** Whether files have multi-token prediction (MTP) layers after the last layer, which are ignored. */
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
