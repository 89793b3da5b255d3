// A model without tensors that reads everything through block tables: a step writes its tokens into
// their blocks, and the next token of a sequence is a hash of all tokens that its table leads to. If a
// block is shared wrongly, copied late, found falsely or freed early, the hash comes out another.
import { BLOCK_TOKENS } from "../../src/kv/blocks.ts";
import type { Batch } from "../../src/schedule/scheduler.ts";
import type { Sequence } from "../../src/schedule/sequence.ts";

export class BlockModel {
  readonly #slots: Uint32Array;
  /** The last token of each sequence, as a device would have it before the host reads it. */
  readonly #last = new Map<Sequence, number>();
  /** Tokens computed in all, and rows of each step. */
  computed = 0;
  readonly rowsPerStep: number[] = [];

  constructor(blocks: number) {
    this.#slots = new Uint32Array(blocks * BLOCK_TOKENS);
  }

  run({ rows, copies }: Batch): number[] {
    for (const { from, to } of copies) {
      const start = from * BLOCK_TOKENS;
      this.#slots.copyWithin(to * BLOCK_TOKENS, start, start + BLOCK_TOKENS);
    }
    for (const { sequence, start, count } of rows) {
      for (let at = start; at < start + count; at++) {
        const token = at < sequence.length ? sequence.tokens()[at]! : this.#last.get(sequence)!;
        this.#slots[this.#slot(sequence, at)] = token;
      }
      this.computed += count;
    }
    this.rowsPerStep.push(rows.length);
    return rows.flatMap(({ sequence, start, count, samples }) =>
      samples.map((sample, i) => {
        const context = Array.from(
          { length: start + count },
          (_, at) => this.#slots[this.#slot(sequence, at)]!,
        );
        const token = nextToken(context, sample === sequence ? 0 : i);
        this.#last.set(sample, token);
        return token;
      }),
    );
  }

  /** Overwrites a block, as a fault would. */
  corrupt(block: number): void {
    this.#slots.fill(0xdead, block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS);
  }

  #slot({ table }: Sequence, at: number): number {
    return table[Math.floor(at / BLOCK_TOKENS)]! * BLOCK_TOKENS + (at % BLOCK_TOKENS);
  }
}

const VOCABULARY = 1000;

/** `fork` stands for a seed of its own, for the first token that forks of one prompt draw. */
export function nextToken(context: readonly number[], fork = 0): number {
  let hash = 2166136261 ^ fork;
  for (const token of context) hash = Math.imul(hash ^ token, 16777619) >>> 0;
  return hash % VOCABULARY;
}

/** What a sequence must give, computed alone. */
export function expectedTokens(prompt: readonly number[], count: number, fork = 0): number[] {
  const context = [...prompt];
  for (let i = 0; i < count; i++) context.push(nextToken(context, i === 0 ? fork : 0));
  return context.slice(prompt.length);
}
