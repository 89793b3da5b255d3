// Models in bfloat16, in a crowd: the log-probabilities of what they say are those of the same weights in
// float32, up to what 8 bits of precision cost.
import { expect, test } from "bun:test";
import { backend } from "../../ffi/native.ts";
import { array } from "../../src/mlx/array.ts";
import { astype, logSumExp, subtract } from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import type { LoadedModel } from "../../src/model/load.ts";
import { ContiguousKv, contiguousStep } from "../support/contiguous-kv.ts";
import { deviceOf } from "../support/devices.ts";
import { makeEngine } from "../support/engine.ts";
import { useMlx } from "../support/mlx.ts";
import { makeRandom } from "../support/random.ts";
import { loadTinyModel, tinyCase } from "../support/tiny-models.ts";

useMlx();

/** Of a log-probability: on average, and at most. SmolLM2 alone, in one pass, has 0.026 and 0.13. */
const TOLERANCE = { mean: 0.1, most: 0.5 };

/** Of each token but the first, after those before it, in one pass. */
function logprobsOf(model: LoadedModel, tokens: readonly number[]): number[] {
  using _ = new Scope();
  const kv = new ContiguousKv();
  const step = contiguousStep([{ kv, count: tokens.length }]);
  const hidden = model.forward(array(Uint32Array.from(tokens)), step);
  const logits = astype(model.logits(hidden), "float32");
  const all = subtract(logits, logSumExp(logits, -1, true)).numbers();
  kv.free();
  return tokens.slice(1).map((token, i) => all[i * model.shape.vocabulary + token]!);
}

const meanOf = (values: readonly number[]) => values.reduce((a, b) => a + b, 0) / values.length;

for (const name of ["llama", "qwen3", "gemma2"]) {
  test(`${name}: log-probabilities in a batch are as near to float32's as alone`, () => {
    const [model, reference] = (["bfloat16", "float32"] as const).map((dtype) =>
      loadTinyModel(tinyCase(name), { device: deviceOf(backend()), dtype }),
    ) as [LoadedModel, LoadedModel];
    const random = makeRandom(5);
    const engine = makeEngine(model, { device: deviceOf(backend()), tokenBudget: 64 });
    const asked = Array.from({ length: 12 }, (_, i) => {
      const prompt = Uint32Array.from({ length: 3 + 9 * i }, () => random.below(200));
      const sampling = { temperature: 1, seed: i, logprobs: 0 };
      return { prompt, answer: engine.submit({ prompt, maxTokens: 24, sampling })[0]! };
    });
    engine.run();
    engine.free();
    const differences = asked.map(({ prompt, answer }) => {
      const said = (logprobs: readonly number[]) => logprobs.slice(prompt.length - 1);
      const [exact, alone] = [reference, model].map((each) =>
        said(logprobsOf(each, [...prompt, ...answer.tokens])),
      );
      const from = (logprobs: readonly (number | undefined)[]) =>
        logprobs.map((logprob, i) => Math.abs(logprob! - exact![i]!));
      return { batched: from(answer.logprobs), alone: from(alone!) };
    });
    for (const each of [model, reference]) each.free();
    const batched = differences.flatMap((each) => each.batched);
    const alone = meanOf(differences.flatMap((each) => each.alone));
    expect(batched).toHaveLength(12 * 24);
    expect(Math.max(...batched)).toBeLessThan(TOLERANCE.most);
    expect(meanOf(batched)).toBeLessThan(Math.min(TOLERANCE.mean, 1.5 * alone));
    // Not float32 after all.
    expect(alone).toBeGreaterThan(1e-4);
  }, 120_000);
}
