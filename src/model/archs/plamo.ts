// PLaMo 13B: attention and MLP in parallel after one norm. Files order query heads by index in their GQA group, then
// by KV head.
import { LoadError } from "../../files/load-error.ts";
import { count, flag } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";

export const plamo = family({
  config: {
    n_shared_head: count.default(8),
    /** Whether query heads are ordered by KV head, as in GGUF files. */
    rows_in_order: flag.default(false),
  },
  design: ({ num_attention_heads: all, n_shared_head: shared, rows_in_order }, weights) => {
    if (all % shared !== 0) {
      throw new LoadError(`config.json: n_shared_head: ${shared} do not divide ${all} heads`);
    }
    return {
      config: { num_key_value_heads: all / shared },
      isParallel: true,
      norms: { attention: "norm" },
      arrange: (name, { dims, heads, kvHeads, headDim }) => {
        if (rows_in_order) return;
        weights.matrices.check(`${name}.q_proj`, [heads * headDim, dims]);
        const order = Array.from({ length: heads }, (_, head) => {
          const [group, query] = [Math.floor(head / shared), head % shared];
          return { first: (query * kvHeads + group) * headDim, count: headDim };
        });
        weights.matrices.reorder(`${name}.q_proj`, order);
        weights.matrices.orderInputs(`${name}.o_proj`, heads * headDim, (input) => {
          const head = Math.floor(input / headDim);
          const [query, group] = [Math.floor(head / kvHeads), head % kvHeads];
          return (group * shared + query) * headDim + (input % headDim);
        });
      },
    };
  },
});
