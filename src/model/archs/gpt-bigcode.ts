// StarCoder and SantaCoder: GPT 2, usually with one KV head.
import { flag, word } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { arrangeGroups } from "../layers/qkv.ts";
import { gpt2 } from "./gpt2.ts";

export const gptBigcode = family({
  like: gpt2,
  config: {
    multi_query: flag.default(true),
    activation_function: word.default("gelu_pytorch_tanh"),
  },
  design: ({ multi_query, num_attention_heads }, weights) => ({
    config: { num_key_value_heads: multi_query ? 1 : num_attention_heads },
    // With several KV heads, the file has each head's query, key and value side by side. Sorts these rows by kind.
    arrange: (name, sizes) => {
      if (!multi_query) arrangeGroups(weights.matrices, name, sizes);
    },
  }),
});
