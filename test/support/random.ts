// Numbers that look random and are the same for the same seed.
export type Random = {
  /** A whole number from 0 up to but without n. */
  below(n: number): number;
  chance(probability: number): boolean;
};

export function makeRandom(seed: number): Random {
  let state = seed >>> 0;
  const unit = () => {
    // mulberry32
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  return { below: (n) => Math.floor(unit() * n), chance: (probability) => unit() < probability };
}
