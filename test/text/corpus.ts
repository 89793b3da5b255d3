// About a megabyte of mixed text, the same that scripts/goldens/text.py makes from the same snippets.
import { join } from "node:path";

const golden = join(import.meta.dir, "../golden/text");
const snippets: string[] = await readGolden("snippets.json");
const LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
const CHUNKS = 72;
const SNIPPETS_PER_CHUNK = 1300;

export type Golden = { text: string; ids: number[]; crcs: number[]; decoded: number[] };

export async function readGolden<T>(name: string): Promise<T> {
  return await Bun.file(join(golden, name)).json();
}

/** Pseudo-random numbers: the same in every run and in Python. */
export function draws(seed: number): (count: number) => number {
  let state = seed;
  return (count) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return (state >>> 8) % count;
  };
}

function chunk(seed: number): string {
  const draw = draws(seed);
  let text = "";
  for (let i = 0; i < SNIPPETS_PER_CHUNK; i++) {
    if (draw(4) === 0) {
      const length = 1 + draw(9);
      for (let j = 0; j < length; j++) text += LETTERS[draw(LETTERS.length)];
    } else text += snippets[draw(snippets.length)];
    if (draw(3) === 0) text += " ";
  }
  return text;
}

export const corpus: readonly string[] = Array.from({ length: CHUNKS }, (_, seed) => chunk(seed));

export function checksum(ids: readonly number[]): number {
  return Bun.hash.crc32(new Uint8Array(Uint32Array.from(ids).buffer));
}

/** Measures synchronous work, which bun's test timeout cannot interrupt. */
export function millisecondsOf(work: () => void): number {
  const begun = performance.now();
  work();
  return performance.now() - begun;
}
