// Whole models on a GPU, through the engine as it is there: kernels, compiled steps, a step launched ahead.
// They continue prompts as mlx-lm does on a CPU. `MLX_SERVE_BACKEND=cuda MLX_ENABLE_TF32=0 bun test`
import { describe, expect, test } from "bun:test";
import { backend } from "../../ffi/native.ts";
import { deviceOf } from "../support/devices.ts";
import { makeEngine } from "../support/engine.ts";
import { useMlx } from "../support/mlx.ts";
import { goldenOf, loadTinyModel, tinyCases } from "../support/tiny-models.ts";

useMlx();
const kind = backend();

describe.skipIf(kind === "cpu")(`models on ${kind} (a GPU is needed)`, () => {
  for (const tiny of tinyCases) {
    test(`${tiny.name}: four at once, one of them later, greedy and with log-probabilities`, () => {
      const device = deviceOf(kind);
      const model = loadTinyModel(tiny, { device, dtype: "float32" });
      const engine = makeEngine(model, { device, tokenBudget: 24 });
      const { prompt, greedy } = goldenOf(tiny);
      const submit = (logprobs?: number) => {
        const sampling = { temperature: 0, logprobs };
        const request = { prompt: Uint32Array.from(prompt), maxTokens: greedy.length, sampling };
        return engine.submit(request)[0]!;
      };
      const answers = [submit(), submit(), submit(2)];
      for (let i = 0; i < 12; i++) engine.step();
      answers.push(submit());
      engine.run();
      engine.free();
      model.free();
      expect(answers.map(({ tokens }) => tokens)).toEqual([greedy, greedy, greedy, greedy]);
    }, 120_000);
  }
});
