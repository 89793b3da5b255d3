// Whole models on a GPU, through the engine as it is there: kernels, compiled steps, a step launched ahead.
// They continue prompts as mlx-lm does on a CPU. `MLX_SERVE_BACKEND=cuda MLX_ENABLE_TF32=0 bun test`
import { describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { backend } from "../../ffi/native.ts";
import { defaultEngineOptions } from "../../src/engine/protocol.ts";
import { BlockPool } from "../../src/kv/blocks.ts";
import type { DeviceKvStore } from "../../src/model/device-kv-store.ts";
import { DeviceRunner } from "../../src/model/device-runner.ts";
import { makeKvStore } from "../../src/model/kv-store.ts";
import { loadModel } from "../../src/model/load.ts";
import { ModelEngine } from "../../src/worker/model-engine.ts";
import { useMlx } from "../support/mlx.ts";
import { goldenOf, tinyCases, writeTinyModel } from "../support/tiny-models.ts";

useMlx();
const kind = backend();

describe.skipIf(kind === "cpu")(`models on ${kind} (a GPU is needed)`, () => {
  for (const tiny of tinyCases) {
    test(`${tiny.name}: four at once, one of them later, greedy and with log-probabilities`, () => {
      const folder = mkdtempSync(join(tmpdir(), "device-"));
      writeTinyModel(folder, tiny);
      const model = loadModel(folder, { backend: kind, dtype: "float32" });
      const blocks = 64;
      const store = makeKvStore(model.shape, blocks, model.dtype, kind) as DeviceKvStore;
      const runner = new DeviceRunner(model, store);
      const engine = new ModelEngine({
        name: "tiny",
        pool: new BlockPool(blocks),
        runner,
        vocabulary: model.shape.vocabulary,
        maxLength: model.shape.maxPositions,
        options: { ...defaultEngineOptions, tokenBudget: 24 },
      });
      const { prompt, greedy } = goldenOf(tiny);
      const answers = new Map<number, number[]>();
      const submit = (id: number, logprobs?: number) => {
        answers.set(id, []);
        const sampling = { temperature: 0, logprobs };
        const request = { prompt: Uint32Array.from(prompt), maxTokens: greedy.length, sampling };
        expect(engine.submit(id, request)).toBeUndefined();
      };
      const step = () => {
        for (const { id, event } of engine.step()?.events ?? []) {
          if (event.token !== undefined) answers.get(id)!.push(event.token);
        }
        engine.check();
      };
      submit(1);
      submit(2);
      submit(3, 2);
      for (let i = 0; i < 12; i++) step();
      submit(4);
      while (!engine.scheduler.idle) step();
      runner.free();
      store.free();
      model.free();
      rmSync(folder, { recursive: true });
      expect([...answers.values()]).toEqual([greedy, greedy, greedy, greedy]);
    }, 120_000);
  }
});
