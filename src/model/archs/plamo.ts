// PLaMo 13B: attention and MLP beside each other behind one norm; the first query of each KV head, then the second.
import { z } from "zod";
import { LoadError } from "../../files/load-error.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { reshape, swapAxes } from "../../mlx/ops.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  n_shared_head: z.int().positive().default(8),
  /** GGUF files have the queries of a KV head beside each other. */
  rows_in_order: z.boolean().default(false),
});

export function plamo(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { num_attention_heads, n_shared_head, rows_in_order } = parsed;
  if (num_attention_heads % n_shared_head !== 0) {
    const heads = `${num_attention_heads} heads`;
    throw new LoadError(`config.json: n_shared_head: ${n_shared_head} do not divide ${heads}`);
  }
  const num_key_value_heads = num_attention_heads / n_shared_head;
  weights.renameParts({ "model.layers.layers.": "model.layers." });
  return transformer({ ...parsed, num_key_value_heads }, weights, {
    isParallel: true,
    norms: { attention: "norm" },
    arrange: (name, { dims, heads, kvHeads, headDim }) => {
      if (rows_in_order) return;
      weights.check(`${name}.q_proj`, [heads * headDim, dims]);
      const order = Array.from({ length: heads }, (_, head) => {
        const [group, query] = [Math.floor(head / n_shared_head), head % n_shared_head];
        return { first: (query * kvHeads + group) * headDim, count: headDim };
      });
      weights.reorder(`${name}.q_proj`, order);
    },
    parts: (_, { heads, kvHeads, headDim }) => {
      if (rows_in_order) return {};
      const afterwards = (attended: MlxArray) => {
        const byGroup = reshape(attended, [-1, kvHeads, n_shared_head, headDim]);
        return reshape(swapAxes(byGroup, 1, 2), [-1, heads * headDim]);
      };
      return { afterwards };
    },
  });
}
