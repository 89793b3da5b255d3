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
  /** If attention and MLP are parallel, the MLP takes attention's input unless this names a norm. */
  mlp?: string;
  afterMlp?: string;
};

export const usualNorms = {
  attention: "input_layernorm",
  mlp: "post_attention_layernorm",
} as const satisfies NormNames;

/** Only after attention and MLP. */
export const normsBehind = {
  afterAttention: "post_attention_layernorm",
  afterMlp: "post_feedforward_layernorm",
} as const satisfies NormNames;

/** Before and after. */
export const normsAround = {
  attention: "input_layernorm",
  mlp: "pre_feedforward_layernorm",
  ...normsBehind,
} as const satisfies NormNames;

export type NormDesign = {
  norms?: NormNames | ((layer: number) => NormNames) | undefined;
  /** Layer norms in place of RMS norms. */
  isLayerNorm?: boolean | undefined;
  /** Added to the weights of norms: some families store weight - 1. */
  normOffset?: number | undefined;
  /** Makes the norms of the layers and the last norm. */
  makeNorm?: ((name: string, dims: number) => AnyNorm) | undefined;
};

export type AttentionDesign = {
  /** Name of a layer's attention in files. */
  attentionName?: string | ((layer: number) => string) | undefined;
  /** Head sizes that differ by layer. */
  heads?: ((layer: number) => Omit<AttentionSizes, "dims">) | undefined;
  /** Neighbouring features rotate together. */
  rotatesNeighbours?: boolean | undefined;
  /** RoPE of a layer, in place of the configuration's; undefined for none. */
  rope?:
    | ((whole: () => Rope, window: number | undefined, layer: number) => Rope | undefined)
    | undefined;
  /** Number of rotary features per head, if the configuration gives it. */
  rotaryDims?: number | null | undefined;
  /** RoPE base of layers with a window, if it differs. */
  localRopeBase?: number | undefined;
  /** Whether a layer has a window, if layer_types is missing. */
  slides?: ((layer: number) => boolean) | undefined;
  /** Names of the RMS norms over each head of queries and keys; "plain" for norms without weights. */
  headNorms?: readonly [query: string, key: string] | "plain" | undefined;
  /** Norms of any kind, with separate weights per head. */
  headwiseNorms?: HeadwiseNorms | undefined;
  /** Norms without weights over each head of values. */
  normsValues?: boolean | undefined;
  /** Norms over all heads of queries at once, and of keys: q_norm and k_norm. */
  normsAllHeads?: boolean | undefined;
  /** Head norms follow RoPE. */
  rotatesFirst?: boolean | undefined;
  /** Queries, keys and values are clipped to [-limit, limit]. */
  qkvLimit?: number | null | undefined;
  attention?:
    | Partial<AttentionOptions>
    | ((name: string, sizes: AttentionSizes, layer: number) => Partial<AttentionOptions>)
    | undefined;
  outputGate?: OutputGate | undefined;
  /** From this layer on, layers read the keys and values of the last earlier layer with the same window. */
  kvOwners?: number | undefined;
  /** Rearranges the tensors of a layer's attention into our order. */
  arrange?: ((name: string, sizes: AttentionSizes, layer: number) => void) | undefined;
  /** Overrides parts of attention. `name` is the attention's name. */
  parts?:
    | ((name: string, sizes: AttentionSizes, layer: AttentionLayer) => Partial<AttentionParts>)
    | undefined;
  /** Wraps the attention block. */
  around?: ((attend: AttentionBlock, layer: AroundLayer) => AttentionBlock) | undefined;
  /** Replaces attention where it returns a block. */
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
  /** The layer reads the keys and values of another one. */
  isSharing: boolean;
};

export type MlpDesign = {
  /** Name of a layer's MLP in files; undefined if layers have only attention. */
  mlpName?: string | undefined;
  /** Width of the MLP, if it is not intermediate_size. */
  hidden?: number | ((layer: number) => number) | undefined;
  gating?: Gating | undefined;
  /** For MLPs without a gate: down(activation(up(x))) */
  activation?: Activation | undefined;
  experts?: ExpertDesign | undefined;
  /** Renames and rearranges the tensors of a layer's MLP. */
  arrangeMlp?: ((name: string) => void) | undefined;
  /** Replaces MLP and experts where it returns one. */
  mlp?: ((name: string, layer: number) => Linear | undefined) | undefined;
};

export type LayerDesign = {
  /** Values for Llama's configuration keys. */
  config?: Partial<BaseConfig> | undefined;
  /** Attention and MLP read the same input in parallel. */
  isParallel?: boolean | undefined;
  /** Factor on each branch before it is added. */
  branchScale?: number | undefined;
  /** Factor on the MLP's output alone. */
  mlpScale?: number | undefined;
  /** Replaces x + branch. */
  sum?: ((x: MlxArray, branch: MlxArray) => MlxArray) | undefined;
  /** Builds a layer from its parts. */
  combine?: ((parts: LayerParts) => Block) | undefined;
  /** Builds the whole layer. */
  layer?: ((name: string, layer: number, states: LayerStates) => Block) | undefined;
  /** Files have multi-token prediction (MTP) layers after the last one; they are ignored. */
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
