import type { ChunkAttention } from "../../src/kernels/attention/paged-attention.ts";
import { array } from "../../src/mlx/array.ts";
import { PlainAttention } from "../../src/self-test/plain-attention.ts";

/** With a kernel for chunks, which computes what its tiles say and nothing else. */
export class TiledAttention extends PlainAttention {
  readonly chunks: ChunkAttention = {
    tile: { most: 5, perToken: 1 },
    attend: (queries, pools, tables, places, tiles, work) => {
      const all = this.attend(queries, pools, tables, places, work);
      const made = new Float32Array(all.size).fill(Number.NaN);
      const [numbers, width] = [all.numbers(), all.shape[1]!];
      const each = tiles.numbers();
      for (let i = 0; i < each.length; i += 2) {
        const [from, to] = [each[i]! * width, (each[i]! + each[i + 1]!) * width];
        made.set(numbers.slice(from, to), from);
      }
      return array(made, all.shape);
    },
  };
}
