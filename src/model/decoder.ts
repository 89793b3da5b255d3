// The frame of a decoder: tokens in, blocks one after the other, a norm, and logits out.
import type { Linear } from "../device/device.ts";
import type { MlxArray } from "../mlx/array.ts";
import { Scope } from "../mlx/scope.ts";
import type { BaseConfig } from "./config.ts";
import { type Block, rmsNorm } from "./layers.ts";
import type { Model, Step } from "./model.ts";
import { LayerStates } from "./states.ts";
import type { Weights } from "./weights.ts";

type Transform = (x: MlxArray) => MlxArray;

/** What some architectures do beside it. */
export type DecoderOptions = {
  /** What stands before every name, as in files that hold more than the decoder. */
  prefix?: string;
  /** Tensors that are not the decoder's. */
  ignored?: RegExp | undefined;
  norm?: Transform | undefined;
  /** Of this name, in place of an RMS norm. */
  makeNorm?: ((name: string) => Transform) | undefined;
  afterEmbedding?: ((h: MlxArray, step: Step) => MlxArray) | undefined;
  afterLogits?: Transform | undefined;
  /** In place of the output matrix, made of it. */
  head?: ((head: Linear) => Linear) | undefined;
  /** What goes into the layers, of the embedded tokens and the tokens: made before the layers are. */
  makeInput?:
    | ((states: LayerStates) => (embedded: MlxArray, tokens: MlxArray, step: Step) => MlxArray)
    | undefined;
  /** What each layer gets beside the hidden state: tokens (T), the embedded tokens -> one a layer. */
  layerInputs?: ((tokens: MlxArray, embedded: MlxArray) => MlxArray[]) | undefined;
};

/** Tensors of what sees. */
const TOWERS =
  /^(model\.)?(visual|vision_tower|vision_model|vision_encoder|vision_adapter|multi_modal_projector|patch_merger|image_newline)\b/;

/** Other names for the part that reads and writes text, in files that also see or hear. */
export function unwrapText(weights: Weights): void {
  weights.rename({
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
  });
  weights.leaveOut(TOWERS);
}

/** What it needs to know. */
export type DecoderConfig = Pick<
  BaseConfig,
  "hidden_size" | "vocab_size" | "num_hidden_layers" | "rms_norm_eps"
> &
  Partial<Pick<BaseConfig, "tie_word_embeddings" | "max_position_embeddings">>;

export function decoder(
  config: DecoderConfig,
  weights: Weights,
  makeBlock: (name: string, layer: number, states: LayerStates) => Block,
  options: DecoderOptions = {},
): Model {
  const { hidden_size: dims, vocab_size: vocabulary, num_hidden_layers: layers } = config;
  const prefix = options.prefix ?? "";
  const same: Transform = (x) => x;
  const { afterEmbedding = same, afterLogits = same } = options;
  const embedding = weights.embedding(`${prefix}model.embed_tokens`, vocabulary, dims);
  const states = new LayerStates();
  const input = options.makeInput?.(states) ?? ((embedded: MlxArray) => embedded);
  const blocks = Array.from({ length: layers }, (_, layer) =>
    makeBlock(`${prefix}model.layers.${layer}`, layer, states),
  );
  const makeNorm =
    options.makeNorm ?? ((name: string) => rmsNorm(weights, name, dims, config.rms_norm_eps));
  const norm = options.norm ?? makeNorm(`${prefix}model.norm`);
  const tied = config.tie_word_embeddings ?? !weights.has(`${prefix}lm_head.weight`);
  const matrix = tied ? embedding.asLinear : weights.linear(`${prefix}lm_head`, dims, vocabulary);
  const head = options.head ? options.head(matrix) : matrix;
  // Some files keep frequencies that follow from the configuration, and a tied matrix twice.
  const repeated = [/\binv_freq$/, /\blm_head\./];
  weights.finish([...repeated, ...(options.ignored ? [options.ignored] : [])]);
  return {
    shape: { dims, vocabulary, maxPositions: config.max_position_embeddings ?? 4096 },
    states,
    forward(tokens, step) {
      using scope = new Scope();
      let h = afterEmbedding(input(embedding.lookup(tokens), tokens, step), step); // (T, D)
      const inputs = options.layerInputs?.(tokens, h);
      for (const [layer, block] of blocks.entries()) h = block(h, step, inputs?.[layer]);
      return scope.keep(norm(h));
    },
    logits(hidden) {
      using scope = new Scope();
      return scope.keep(afterLogits(head(hidden)));
    },
  };
}
