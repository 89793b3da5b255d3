// LongCat Flash Lite: LongCat Flash whose input is the mean of token embeddings and n-gram embeddings.
import type { MlxArray } from "../../mlx/array.ts";
import {
  add,
  astype,
  divide,
  expandDims,
  floorDivide,
  multiply,
  split,
  squeeze,
  subtract,
  zeros,
} from "../../mlx/ops.ts";
import { count, integer } from "../checkpoint/config.ts";
import type { Step } from "../contract/model.ts";
import type { LayerStates } from "../contract/states.ts";
import { type ConfigOf, family } from "../design/family.ts";
import { delayed } from "../layers/recurrent-layers.ts";
import type { Weights } from "../weights/weights.ts";
import { longcatFlash } from "./longcat-flash.ts";

const keys = {
  ngram_vocab_size_ratio: count.default(78),
  /** Maximum length of an n-gram. */
  emb_neighbor_num: integer.min(2).max(64).default(4),
  /** Number of embedding tables for each n-gram length. */
  emb_split_num: count.max(64).default(4),
};

export const longcatFlashNgram = family({
  like: longcatFlash,
  config: keys,
  names: { "model.ngram_embeddings.word_embeddings.": "model.embed_tokens." },
  design: (config, weights) => ({ makeInput: (states) => ngramInput(config, weights, states) }),
});

/** Returns a function that averages the embeddings of the token and of the n-grams that end with it. */
function ngramInput(config: ConfigOf<typeof keys>, weights: Weights, states: LayerStates) {
  const { hidden_size: dims, vocab_size, emb_neighbor_num: most, emb_split_num: each } = config;
  const total = each * (most - 1);
  const embeddings = Array.from({ length: total }, (_, index) => {
    const size = config.ngram_vocab_size_ratio * vocab_size + 2 * index + 1;
    const name = "model.ngram_embeddings";
    const narrow = Math.floor(dims / total);
    const { lookup } = weights.embedding(`${name}.embedders.${index}`, size, narrow);
    const project = weights.linear(`${name}.post_projs.${index}`, narrow, dims);
    const tokens = 2 + Math.floor(index / each);
    return { size, tokens, embed: (ids: MlxArray) => project(lookup(ids)) };
  });
  const before = tokensBefore(weights, states, most - 1);
  return (embedded: MlxArray, tokens: MlxArray, step: Step) => {
    const last = before(tokens, step);
    const all = embeddings.map(({ size, tokens: length, embed }) => {
      let [ids, factor] = [astype(tokens, "int64"), 1];
      for (const earlier of last.slice(0, length - 1)) {
        factor = (factor * vocab_size) % size;
        ids = add(ids, multiply(earlier, factor));
      }
      return embed(subtract(ids, multiply(floorDivide(ids, size), size)));
    });
    return divide(all.reduce(add, embedded), 1 + total);
  };
}

/** Returns a function that gives the `count` previous tokens, nearest first, (T) int64; 0 before the start. */
function tokensBefore(weights: Weights, states: LayerStates, count: number) {
  const delays = Array.from({ length: count }, (_, channel) => channel + 1);
  const before = delayed(weights, states, delays);
  return (tokens: MlxArray, step: Step): MlxArray[] => {
    const numbers = expandDims(astype(tokens, "float32"), 1);
    const shifted = before(add(numbers, zeros([1, count])), step); // (T, count)
    return split(shifted, count).map((column) => astype(squeeze(column, 1), "int64"));
  };
}
