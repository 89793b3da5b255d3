// StarCoder and SantaCoder: GPT 2 whose heads share one key and value.
import { flag, word } from "../config.ts";
import { family } from "../family.ts";
import { arrangeGroups } from "../qkv.ts";
import { gptConfig, gptKeys, gptMasks, gptMlp, learnedPositions } from "./gpt2.ts";

export const gptBigcode = family({
  config: {
    ...gptConfig,
    multi_query: flag.default(true),
    activation_function: word.default("gelu_pytorch_tanh"),
  },
  keys: gptKeys,
  leftOut: gptMasks,
  design: ({ multi_query, ...config }, weights) => ({
    ...gptMlp(config),
    ...learnedPositions(config, weights),
    config: {
      tie_word_embeddings: true,
      num_key_value_heads: multi_query ? 1 : config.num_attention_heads,
    },
    // Where each head has its own, they stand side by side.
    arrange: (name, sizes) => {
      if (!multi_query) arrangeGroups(weights, name, sizes);
    },
  }),
});
