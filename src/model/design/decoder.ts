// Builds a decoder around given blocks: embeds tokens, runs the blocks, applies the last norm, computes logits.
import type { Hidden, Linear } from "../../device/device.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { multiply, reshape } from "../../mlx/ops.ts";
import { Scope } from "../../mlx/scope.ts";
import type { BaseConfig } from "../checkpoint/config.ts";
import type { Model, Step } from "../contract/model.ts";
import { originalLength } from "../contract/rope.ts";
import { LayerStates } from "../contract/states.ts";
import { type Crossing, crossingsAt, sideBySide, takeApart, widthOf } from "../layers/crossings.ts";
import { type Block, rowsOf, softCap } from "../layers/layers.ts";
import type { Embedding, Weights } from "../weights/weights.ts";

type Transform = (x: MlxArray) => MlxArray;

/** Options of a decoder that differ between architectures. */
export type DecoderOptions = {
  /** Names of tensors that the decoder does not use. */
  ignored?: readonly RegExp[] | undefined;
  /** Factors on embeddings (`embeddingScale`) and on logits (`logitScale`). */
  embeddingScale?: number | undefined;
  logitScale?: number | undefined;
  /** Soft cap: logits are mapped into (-cap, cap). */
  logitCap?: number | null | undefined;
  afterEmbedding?: ((h: MlxArray, step: Step) => MlxArray) | undefined;
  /** Function of the last layer's output before the last norm. */
  beforeNorm?: Transform | undefined;
  afterLogits?: Transform | undefined;
  /** Function that wraps the output matrix. */
  head?: ((head: Linear) => Linear) | undefined;
  /** Makes the first layer's input from embeddings and tokens. Called before the layers are built. */
  makeInput?:
    | ((states: LayerStates) => (embedded: MlxArray, tokens: MlxArray, step: Step) => MlxArray)
    | undefined;
  /** Values that layers take from earlier layers in addition to the hidden state. */
  crossings?: readonly Crossing[] | undefined;
  /** Number of hidden states per token (T, streams, D); undefined for one. */
  streams?: number | undefined;
  /** Additional input of each layer, with `width` features. */
  layerInputs?: { width: number; make(): LayerInputs } | undefined;
};

/** Makes one input per layer from tokens (T) and their embeddings. */
export type LayerInputs = (tokens: MlxArray, embedded: MlxArray) => MlxArray[];

/** Tensors that no model uses: precomputed frequencies, a duplicate of a tied matrix, MTP layers. */
const UNUSED = [/\binv_freq$/, /\blm_head\./, /(^|\.)mtp[._]/];

export function decoder(
  config: BaseConfig,
  weights: Weights,
  makeBlock: (name: string, layer: number, states: LayerStates) => Block,
  makeNorm: (name: string, dims: number) => Transform,
  options: DecoderOptions,
): Model {
  const { hidden_size: dims, vocab_size: vocabulary, num_hidden_layers: layers } = config;
  const { embeddingScale = 1, logitScale = 1, logitCap, ignored = [] } = options;
  const { afterEmbedding, beforeNorm, afterLogits, streams = 1 } = options;
  const { stage } = weights;
  const tied = config.tie_word_embeddings ?? !weights.stored.has("lm_head.weight");
  const vocabularyLayers = layersWorth(weights, layers, tied);
  const { first, end } = stage?.layersOf(layers, vocabularyLayers) ?? { first: 0, end: layers };
  const hasVocabulary = stage?.isFirst ?? true;
  const embedding = hasVocabulary
    ? weights.embedding("model.embed_tokens", vocabulary, dims)
    : undefined;
  const makeInputs = embedding && options.layerInputs?.make();
  const inputs = inputCrossings(options, layers);
  const crossings = [...(options.crossings ?? []), ...inputs];
  const [arriving, leaving] = [crossingsAt(first, crossings), crossingsAt(end, crossings)];
  const states = new LayerStates(weights.windows, originalLength(config));
  const input = (embedding && options.makeInput?.(states)) ?? ((embedded: MlxArray) => embedded);
  const blocks = Array.from({ length: end - first }, (_, i) =>
    makeBlock(`model.layers.${first + i}`, first + i, states),
  );
  /** Computes the last layer for sampled rows alone; undefined if something after that layer needs all tokens. */
  const lastForRows = stage || beforeNorm ? undefined : blocks.at(-1)?.forRows;
  const norm = (stage?.isLast ?? true) ? makeNorm("model.norm", dims) : undefined;
  const makeHead = ({ asLinear }: Pick<Embedding, "asLinear">) => {
    const matrix = tied ? asLinear : weights.head("lm_head", dims, vocabulary);
    return options.head ? options.head(matrix) : matrix;
  };
  const head = embedding && makeHead(embedding);
  // With pipeline parallelism, other ranks load the other layers.
  if (!stage) weights.stored.finish([...UNUSED, ...ignored]);
  const embed = ({ lookup }: Embedding, tokens: MlxArray, step: Step) => {
    const h = input(lookup(tokens), tokens, step); // (T, D)
    const scaled = embeddingScale === 1 ? h : multiply(h, embeddingScale);
    return afterEmbedding ? afterEmbedding(scaled, step) : scaled;
  };
  const receive = (tokens: number) => {
    const width = streams * dims;
    const received = stage!.receive(tokens, width + widthOf(arriving));
    const h = takeApart(received, width, arriving);
    return streams === 1 ? h : reshape(h, [tokens, streams, dims]);
  };
  return {
    shape: { dims, vocabulary, layers, maxPositions: config.max_position_embeddings ?? 4096 },
    states,
    forward(tokens, step, rows, begun) {
      using scope = new Scope();
      const count = tokens.shape[0]!;
      let h: Hidden = embedding ? embed(embedding, tokens, step) : receive(count);
      for (const [i, value] of makeInputs?.(tokens, h).entries() ?? []) inputs[i]!.value = value;
      for (const [i, block] of blocks.entries()) {
        const input = inputs[first + i]?.value;
        const some = i === blocks.length - 1 ? rows : undefined;
        const build = () =>
          some && lastForRows ? lastForRows(some, h, step, input) : block(h, step, input);
        // Layers are not launched early if they have crossings, which need arrays of earlier layers.
        h = begun && crossings.length === 0 && !some ? begun.add(build) : build();
      }
      if (norm) h = norm(beforeNorm ? beforeNorm(h) : h);
      if (stage) h = stage.pass(sideBySide(h, leaving), count, dims);
      return scope.keep(lastForRows ? h : rowsOf(h, rows));
    },
    logits(hidden) {
      using scope = new Scope();
      let logits = head!(hidden);
      if (logitScale !== 1) logits = multiply(logits, logitScale);
      if (logitCap) logits = softCap(logits, logitCap);
      return scope.keep(afterLogits ? afterLogits(logits) : logits);
    },
  };
}

/** Makes one crossing per layer for `layerInputs`, which are computed from the tokens before the first layer. */
function inputCrossings({ layerInputs }: DecoderOptions, layers: number): Crossing[] {
  if (!layerInputs) return [];
  const { width } = layerInputs;
  return Array.from({ length: layers }, (_, to) => ({ from: -1, to, width }));
}

/** Returns the size of embedding and output matrix together, as a number of average layers. */
function layersWorth(weights: Weights, layers: number, tied: boolean): number {
  const vocabulary =
    weights.stored.bytesOf("model.embed") + (tied ? 0 : weights.stored.bytesOf("lm_head."));
  return (layers * vocabulary) / weights.stored.bytesOf("model.layers.");
}
