// Estimates the memory of a model's steps from sketches (arrays that are never computed) of four steps: few and many
// tokens, at the start and at the end of the longest context.
import type { Device } from "../device/device.ts";
import { peakBytes } from "../mlx/peak.ts";
import { sketchesOf } from "../mlx/sketch.ts";
import { groupsOf } from "../model/contract/states.ts";
import { type LoadedModel, type LoadOptions, loadModel } from "../model/load.ts";
import { Runner } from "../model/run/runner.ts";
import type { SampleRow } from "../model/run/sampler.ts";
import type { StepInputs } from "../model/run/step.ts";
import { StateStore } from "../model/state/state-store.ts";
import type { ModelNeeds } from "./planner.ts";

export type StepSizes = {
  maxBatch: number;
  /** Maximum tokens per step. */
  tokens: number;
  /** Maximum sequence length, if below the model's own. */
  maxLength?: number | undefined;
};

/** Longest context that is sketched. Memory grows linearly with it, so longer ones are extrapolated. */
const LONGEST = 2 ** 17;

export type Sketched = Pick<LoadedModel, "dtype" | "weightBytes" | "shape" | "states"> &
  Pick<ModelNeeds, "stepBytes">;

/** Loads the model with arrays that have shapes but no contents. Throws the errors of a real load. */
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

/** Returns the weights and states of a model, or of one rank's part, from a sketch without steps. */
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

/** Returns a layout of one block and one slot, since a sketch needs only the shapes of the pools. */
function layoutOf(states: LoadedModel["states"]) {
  return {
    groups: groupsOf(states).map(({ window }) => ({ blocks: 1, window })),
    slots: states.slots.length > 0 ? 1 : undefined,
  };
}

/** Returns the position of `value` between `first` (0) and `last` (1); above 1 if it exceeds `last`. */
function share(value: number, [first, last]: number[]): number {
  return first === last ? 1 : Math.max(0, (value - first!) / (last! - first!));
}

/** The sampling options that take the most memory: top-p sorts the whole vocabulary. */
const sampled: SampleRow = { sampling: { temperature: 1, topP: 0.5, seed: 0 }, index: 0 };

/** Returns a step of `tokens` tokens in scratch blocks: decoding rows and a prompt chunk, all ending at `length`. */
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
