// What the arrays of a model's steps take, from sketches of a few steps: of few and of many tokens, at the beginning of
// a sequence and at the end of the longest.
import type { Device } from "../device/device.ts";
import { peakBytes } from "../mlx/peak.ts";
import { sketchesOf } from "../mlx/sketch.ts";
import { groupsOf } from "../model/contract/states.ts";
import { type LoadedModel, type LoadOptions, loadModel } from "../model/load.ts";
import { Runner, type StepInputs } from "../model/run/runner.ts";
import type { SampleRow } from "../model/run/sampler.ts";
import { StateStore } from "../model/state/state-store.ts";
import type { ModelNeeds } from "./planner.ts";

export type StepSizes = {
  maxBatch: number;
  /** The most tokens of a step. */
  tokens: number;
  /** The longest sequence, where that is shorter than what the model was made for. */
  maxLength?: number | undefined;
};

/** Farther on it goes as far as the numbers go: what a step takes grows evenly. */
const LONGEST = 2 ** 17;

export type Sketched = Pick<LoadedModel, "dtype" | "weightBytes" | "shape" | "states"> &
  Pick<ModelNeeds, "stepBytes">;

/** The model as a load would make it, with arrays that are never filled: so it finds what a load would fail at. */
export function sketchModel(
  real: Device,
  path: string,
  load: Omit<LoadOptions, "device">,
  sizes: StepSizes,
): Sketched {
  let sketched: Omit<Sketched, "stepBytes"> | undefined;
  let [lengths, counts]: number[][] = [];
  const sketches = sketchesOf(() => {
    using made = new DisposableStack();
    const owned = <T extends { free(): void }>(each: T): T => made.adopt(each, () => each.free());
    const device: Device = { ...real, ...owned(real.sketch()) };
    const model = owned(loadModel(path, { ...load, device }));
    const { dtype, weightBytes, shape, states } = model;
    sketched = { dtype, weightBytes, shape, states };
    const store = owned(new StateStore(device, states, layoutOf(states), dtype));
    const runner = owned(new Runner(device, model, store));
    const longest = Math.min(shape.maxPositions, sizes.maxLength ?? shape.maxPositions);
    counts = [Math.min(2 * sizes.maxBatch, sizes.tokens), sizes.tokens];
    lengths = [sizes.tokens, Math.max(sizes.tokens, Math.min(longest, LONGEST))];
    const launches = lengths.flatMap((length) =>
      counts!.map((tokens) => () => {
        runner.launch(largestStep(store, { ...sizes, tokens, length })).read();
      }),
    );
    const kept = made.move();
    return { launches, free: () => kept.dispose() };
  });
  const [few, many, fewLate, manyLate] = sketches.map((each) => peakBytes(each, real.evaluation));
  return {
    ...sketched!,
    stepBytes: (tokens, length) => {
      const late = share(length, lengths!);
      const more = share(tokens, counts!);
      const between = (from: number, to: number, part: number) => from + (to - from) * part;
      const bytes = between(between(few!, many!, more), between(fewLate!, manyLate!, more), late);
      return Math.max(0, bytes);
    },
  };
}

/** What weights and states there would be, or a rank's part of them. */
export function sketchParts(
  real: Device,
  path: string,
  load: Omit<LoadOptions, "device">,
): Pick<LoadedModel, "dtype" | "weightBytes" | "states"> {
  let parts: Pick<LoadedModel, "dtype" | "weightBytes" | "states"> | undefined;
  sketchesOf(() => {
    const sketch = real.sketch();
    const model = loadModel(path, { ...load, device: { ...real, ...sketch } });
    const { dtype, weightBytes, states } = model;
    parts = { dtype, weightBytes, states };
    model.free();
    return { launches: [], free: () => sketch.free() };
  });
  return parts!;
}

/** Pools of a block and a slot: only their shapes matter. */
function layoutOf(states: LoadedModel["states"]) {
  return {
    groups: groupsOf(states).map(({ window }) => ({ blocks: 1, window })),
    slots: states.slots.length > 0 ? 1 : undefined,
  };
}

/** How far a number is on the way from the first to the last; past it where it is larger. */
function share(value: number, [first, last]: number[]): number {
  return first === last ? 1 : Math.max(0, (value - first!) / (last! - first!));
}

/** Rows are sampled as it takes most: all of the vocabulary in order. */
const sampled: SampleRow = { sampling: { temperature: 1, topP: 0.5, seed: 0 }, index: 0 };

/** A chunk of a prompt that ends at this length, beside sequences of the same length that decode. Nobody's tokens. */
export function largestStep(
  store: StateStore,
  { maxBatch, tokens, length }: { maxBatch: number; tokens: number; length: number },
): StepInputs {
  const beside = Math.min(maxBatch, tokens) - 1;
  const chunk = tokens - beside;
  const decoding = store.scratchRow(length - 1, 1);
  const rows = [...Array(beside).fill(decoding), store.scratchRow(length - chunk, chunk)];
  const samples = rows.map((_, i) => ({ at: i < beside ? i : tokens - 1, row: sampled }));
  return { tokens: new Uint32Array(tokens), rows, samples, copies: [], scores: [], sums: [] };
}
