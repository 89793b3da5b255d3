// A model whose layers are divided among ranks: each has some that follow each other, and passes hidden states on to the
// next. The first embeds tokens, and gets the last one's hidden states back: it has the output matrix, and draws.

import { LoadError } from "../files/load-error.ts";
import { evaluate, type MlxArray } from "../mlx/array.ts";
import type { Group } from "../mlx/distributed.ts";
import type { Dtype } from "../mlx/dtype.ts";
import { astype } from "../mlx/ops.ts";

export class Stage {
  readonly isFirst: boolean;
  readonly isLast: boolean;
  readonly #group: Group;
  readonly #dtype: Dtype;

  constructor(group: Group, dtype: Dtype) {
    this.#group = group;
    this.#dtype = dtype;
    this.isFirst = group.rank === 0;
    this.isLast = group.rank === group.size - 1;
  }

  /** Which of so many layers it has; the first rank, which also has the vocabulary, has no more than others. */
  layersOf(count: number): { first: number; end: number } {
    const { rank, size } = this.#group;
    if (count < size) {
      const found = `${count} layers for ${size} ranks`;
      throw new LoadError(`config.json: ${found}: divide it by --parallelism tensor`);
    }
    const [first, end] = [rank, rank + 1].map((each) => Math.floor((count * each) / size));
    return { first: first!, end: end! };
  }

  /** The hidden states (T, D) that the rank before has made. */
  receive(tokens: number, dims: number): MlxArray {
    const { rank, size } = this.#group;
    return this.#group.receive([tokens, dims], this.#dtype, (rank + size - 1) % size);
  }

  /** Sends them to the next rank, or the last rank's to the first; what the first rank gets back are the last one's. */
  pass(hidden: MlxArray, tokens: number, dims: number): MlxArray {
    const { rank, size } = this.#group;
    evaluate(this.#group.send(astype(hidden, this.#dtype), (rank + 1) % size));
    return this.isFirst ? this.receive(tokens, dims) : hidden;
  }
}
