// A model without tensors that knows of a sequence only what its layers would keep: each group writes a step's tokens
// into their blocks, and a slot has a hash of all tokens before it. The next token of a sequence is a hash of
// all its tokens as they are read there. If a block is shared wrongly, copied late, found falsely or freed early, if
// a state is another's or a snapshot was written to, the hash comes out another. So it does if not all tokens of a
// sequence were written as short or long as it is by then.
import { BLOCK_TOKENS } from "../../src/kv/blocks.ts";
import { type CacheLayout, NONE } from "../../src/kv/kv-cache.ts";
import type { Batch, Row } from "../../src/schedule/scheduler.ts";
import type { Sequence } from "../../src/schedule/sequence.ts";

export class BlockModel {
  readonly #groups: { tokens: Uint32Array; window: number }[];
  readonly #states: Uint32Array;
  readonly #originalLength: number;
  /** The last token of each sequence, as a device would have it before the host reads it. */
  readonly #last = new Map<Sequence, number>();
  /** Tokens computed in all, and rows of each step. */
  computed = 0;
  readonly rowsPerStep: number[] = [];

  /** Tokens of sequences longer than `originalLength` are written differently. */
  constructor({ groups, slots = 0 }: CacheLayout, originalLength = Number.POSITIVE_INFINITY) {
    this.#originalLength = originalLength;
    this.#groups = groups.map(({ blocks, window = Number.POSITIVE_INFINITY }) => {
      return { tokens: new Uint32Array(blocks * BLOCK_TOKENS), window };
    });
    this.#states = new Uint32Array(slots);
  }

  run({ rows, copies }: Batch): number[] {
    for (const { group, from, to } of copies) {
      const start = from * BLOCK_TOKENS;
      const { tokens } = this.#groups[group]!;
      tokens.copyWithin(to * BLOCK_TOKENS, start, start + BLOCK_TOKENS);
    }
    checkMoves(rows);
    for (const row of rows) this.#write(row);
    this.rowsPerStep.push(rows.length);
    return rows.flatMap((row) => {
      const context = row.samples.length > 0 ? this.#read(row) : [];
      return row.samples.map((sample, i) => {
        const token = nextToken(context, sample === row.sequence ? 0 : i);
        this.#last.set(sample, token);
        return token;
      });
    });
  }

  /** Overwrites a block of the first group, as a fault would. */
  corrupt(block: number): void {
    this.#groups[0]!.tokens.fill(0xdead, block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS);
  }

  #write({ sequence, start, count, move }: Row): void {
    let state = move && (move.from === NONE ? EMPTY : this.#states[move.from]!);
    for (let at = start; at < start + count; at++) {
      const token = this.#tokenOf(sequence, at);
      this.#groups.forEach(({ tokens }, group) => {
        tokens[placeOf(sequence, group, at)] = written(token, sequence.isLong);
      });
      if (state !== undefined) state = hashed(state, token);
    }
    if (move) this.#states[move.to] = state!;
    this.computed += count;
  }

  /** All its tokens, with a wrong one where what is kept of them is wrong. */
  #read({ sequence, start, count, move }: Row): number[] {
    const length = start + count;
    const isLong = length > this.#originalLength;
    const context = Array.from({ length }, (_, at) => this.#tokenOf(sequence, at));
    this.#groups.forEach(({ tokens, window }, group) => {
      for (let at = Math.max(0, start + 1 - window); at < length; at++) {
        const token = tokens[placeOf(sequence, group, at)]!;
        if (token !== written(context[at]!, isLong)) context[at] = WRONG;
      }
    });
    const isWrong = move && this.#states[move.to] !== context.reduce(hashed, EMPTY);
    return isWrong ? [...context, WRONG] : context;
  }

  #tokenOf(sequence: Sequence, at: number): number {
    return at < sequence.length ? sequence.tokens()[at]! : this.#last.get(sequence)!;
  }
}

function written(token: number, isLong: boolean): number {
  return isLong ? ~token >>> 0 : token;
}

function placeOf({ held }: Sequence, group: number, at: number): number {
  const block = held.tables[group]![Math.floor(at / BLOCK_TOKENS)]!;
  if (block === NONE) throw new Error(`token ${at} of a sequence was given back and is read`);
  return block * BLOCK_TOKENS + (at % BLOCK_TOKENS);
}

/** Rows of a step are computed at the same time: none may read what another writes. */
function checkMoves(rows: readonly Row[]): void {
  const writers = new Map<number, Row>();
  for (const row of rows) {
    if (!row.move) continue;
    if (writers.has(row.move.to)) throw new Error(`two rows write to slot ${row.move.to}`);
    writers.set(row.move.to, row);
  }
  for (const row of rows) {
    const writer = row.move && writers.get(row.move.from);
    if (writer && writer !== row) throw new Error(`slot ${row.move!.from} is read and written to`);
  }
}

const VOCABULARY = 1000;
const WRONG = 0xdead;
const EMPTY = 2166136261;

function hashed(hash: number, token: number): number {
  return Math.imul(hash ^ token, 16777619) >>> 0;
}

/** `fork` stands for a seed of its own, for the first token that forks of one prompt draw. */
export function nextToken(context: readonly number[], fork = 0): number {
  return context.reduce(hashed, EMPTY ^ fork) % VOCABULARY;
}

/** What a sequence must give, computed alone. */
export function expectedTokens(prompt: readonly number[], count: number, fork = 0): number[] {
  const context = [...prompt];
  for (let i = 0; i < count; i++) context.push(nextToken(context, i === 0 ? fork : 0));
  return context.slice(prompt.length);
}
