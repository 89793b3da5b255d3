// What a kernel in plain arithmetic is (plain-kernels.ts).
export type Numbers = Float32Array | Int32Array;

/** A kernel's inputs by their names. */
export type Inputs = Readonly<Record<string, Numbers>>;

/** Its template arguments, with 1 for true. */
export type Constants = Readonly<Record<string, number>>;

/** Writes to its output, and to what `writes` names. */
export type PlainKernel = {
  writes: readonly string[];
  run(inputs: Inputs, constants: Constants, output: Numbers): void;
};

/** What belongs to one launch has no order: nothing may read what another writes. */
export function refuseChains(moves: readonly { from: number; to: number }[]): void {
  for (const a of moves)
    for (const b of moves)
      if (a !== b && a.from === b.to) throw new Error(`a launch reads and writes ${a.from}`);
}
