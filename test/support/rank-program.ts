// What each of several ranks runs in tests: tiny models, divided among the ranks, through the whole engine. All ranks
// run the same requests at the same time, and print what they got, a line of JSON each.
import { findLibrary } from "../../ffi/native.ts";
import { type Group, MlxGroup } from "../../src/mlx/distributed.ts";
import { openMlx } from "../../src/mlx/runtime.ts";
import { deviceOf } from "./devices.ts";
import { makeEngine } from "./engine.ts";
import { goldenOf, loadTinyModel, type TinyCase, tinyCase } from "./tiny-models.ts";

/** `share`: of the bytes of all weights, and of a token's keys and values. */
export type RankResult = {
  name: string;
  rank: number;
  isRight: boolean;
  share: { weights: number; kv: number };
  error?: string;
};

const TOKENS = 12;

function run(tiny: TinyCase, group: Group): RankResult {
  const { prompt, greedy } = goldenOf(tiny);
  const device = deviceOf("cpu");
  using made = new DisposableStack();
  const owned = <T extends { free(): void }>(each: T): T => made.adopt(each, () => each.free());
  const model = owned(loadTinyModel(tiny, { device, group }));
  const whole = owned(loadTinyModel(tiny, { device }));
  // Ranks must take the same steps, however long each took.
  let ms = 0;
  const engine = owned(makeEngine(model, { nowMs: () => ms++ }));
  const sampling = { temperature: 0 };
  const request = { prompt: Uint32Array.from(prompt), maxTokens: TOKENS, sampling };
  const answers = [engine.submit(request), engine.submit({ ...request, n: 2 })].flat();
  engine.run();
  const expected = greedy.slice(0, TOKENS).join();
  const kvOf = ({ states }: typeof model) =>
    states.kvs.reduce((sum, { kvHeads, headDim }) => sum + kvHeads * headDim, 0);
  return {
    name: tiny.name,
    rank: group.rank,
    isRight: answers.every(({ tokens }) => tokens.join() === expected),
    share: { weights: model.weightBytes / whole.weightBytes, kv: kvOf(model) / kvOf(whole) },
  };
}

if (import.meta.main) {
  const { backend } = openMlx(findLibrary(), { device: "cpu" });
  const group = new MlxGroup("ring", backend);
  for (const name of process.argv.slice(2)) {
    try {
      console.log(JSON.stringify(run(tinyCase(name), group)));
    } catch (error) {
      // The others wait in a collective that this rank has not come to.
      console.log(JSON.stringify({ name, rank: group.rank, isRight: false, error: String(error) }));
      process.exit(1);
    }
  }
  process.exit(0);
}
