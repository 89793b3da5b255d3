// StarCoder and SantaCoder: GPT 2 whose heads share one key and value.
import { z } from "zod";
import { parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { arrangeGroups } from "../qkv.ts";
import type { Weights } from "../weights.ts";
import { GptConfig, gptKeys, gptNames, learnedPositions } from "./gpt2.ts";

const Config = GptConfig.extend({
  multi_query: z.boolean().default(true),
  activation_function: z.string().default("gelu_pytorch_tanh"),
});

export function gptBigcode(config: unknown, weights: Weights): Model {
  const { multi_query, ...parsed } = parseConfig(Config, config, gptKeys);
  weights.leaveOut(/\.attn\.(masked_)?bias$/);
  weights.rename({ "transformer.": "model." });
  weights.renameParts(gptNames);
  const heads = { num_key_value_heads: multi_query ? 1 : parsed.num_attention_heads };
  return learnedPositions({ ...parsed, ...heads }, weights, {
    // Where each head has its own, they stand side by side.
    arrange: (name, sizes) => {
      if (!multi_query) arrangeGroups(weights, name, sizes);
    },
  });
}
