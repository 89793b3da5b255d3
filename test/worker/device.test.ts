// Every architecture the way production goes: scheduler, paged store, runner, on the device at hand. Each gives
// what mlx-lm gives on a CPU, whatever the scheduler does to a request. On a GPU:
// `MLX_SERVE_BACKEND=cuda MLX_ENABLE_TF32=0 bun test test/worker/device.test.ts`
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { backend } from "../../ffi/native.ts";
import type { Device } from "../../src/device/device.ts";
import type { EngineRequest, PromptLogprob } from "../../src/engine/protocol.ts";
import { groupsOf } from "../../src/model/contract/states.ts";
import type { LoadedModel } from "../../src/model/load.ts";
import { architectures } from "../../src/model/registry.ts";
import type { StepInputs } from "../../src/model/run/step.ts";
import { deviceOf } from "../support/devices.ts";
import { makeEngine } from "../support/engine.ts";
import { useMlx } from "../support/mlx.ts";
import { goldenOf, loadTinyModel, tinyCases } from "../support/tiny-models.ts";

useMlx();

const TOLERANCE = 1e-4;

test("there is a tiny model of every architecture, plain and quantized", () => {
  const typesOf = (some: typeof tinyCases) => new Set(some.map(({ config }) => config.model_type));
  const known = new Set(architectures.keys());
  expect(typesOf(tinyCases.filter(({ quantization }) => !quantization))).toEqual(known);
  expect(typesOf(tinyCases.filter(({ quantization }) => quantization))).toEqual(known);
});

describe.each(tinyCases.map((tiny) => [tiny.name, tiny] as const))("%s", (_, tiny) => {
  let device: Device;
  let model: LoadedModel;
  beforeAll(() => {
    device = deviceOf(backend());
    model = loadTinyModel(tiny, { device, dtype: "float32" });
  }, 120_000);
  afterAll(() => model.free());

  test.each([16, 64])(
    "logits of a prompt, %i tokens a step",
    (tokenBudget) => {
      const engine = makeEngine(model, { device, tokenBudget });
      const { prompt, last, sampled } = goldenOf(tiny);
      const [answer] = engine.submit({
        prompt: Uint32Array.from(prompt),
        maxTokens: 1,
        sampling: { temperature: 0, logprobs: last.length, logitsOf: [5, 0] },
        promptLogprobs: last.length,
      });
      engine.run();
      engine.free();
      const { top, logits, promptLogprobs } = answer!.first!;
      expect(distance(logits!, [last[5]!, last[0]!])).toBeLessThan(TOLERANCE);
      expect(distance(byToken(top!), logSoftmax(last))).toBeLessThan(TOLERANCE);
      for (const [position, first] of sampled) {
        const found = byToken((promptLogprobs as PromptLogprob[])[position]!.top);
        // Of the golden's row only the first logits are kept: they are compared beside the first of them.
        const beside = (row: readonly number[]) =>
          row.slice(0, first.length).map((x) => x - row[0]!);
        expect(distance(beside(found), beside(first))).toBeLessThan(TOLERANCE);
      }
    },
    120_000,
  );

  test("batched, chunked, prefix-hit, forked, preempted, beside aborted ones", () => {
    const { prompt, greedy: all } = goldenOf(tiny);
    const greedy = all.slice(0, 30);
    const seen = { chunks: 0, copies: 0 };
    const watch = (inputs: StepInputs) => {
      seen.chunks += inputs.rows.filter(({ count, start }) => count > 1 && start > 0).length;
      seen.copies += inputs.copies.length;
      return inputs;
    };
    // Six sequences of 70 tokens take 18 blocks; they share the prompt's first one. Where all layers have a
    // window, they take one or two each; sequences that become long release what they have.
    const groups = groupsOf(model.states);
    const haveWindows = groups.every(({ window }) => window !== undefined);
    const blocks = haveWindows || model.states.originalLength !== undefined ? 10 : 12;
    // Slots do not run out as sequences grow: where there is nothing else, a place is taken by priority.
    const isRecurrent = groups.length === 0;
    // Nobody's priority grows while a GPU's kernels are compiled.
    const nowMs = () => 0;
    const options = { device, tokenBudget: 24, maxBatch: isRecurrent ? 3 : 6, blocks, nowMs };
    const engine = makeEngine(model, options, watch);
    const request = (more: Partial<EngineRequest> = {}): EngineRequest => ({
      prompt: Uint32Array.from(prompt),
      maxTokens: greedy.length,
      sampling: { temperature: 0 },
      ...more,
    });
    const answers = [
      ...engine.submit(request()),
      ...engine.submit(request({ sampling: { temperature: 0, logprobs: 2 } })),
      ...engine.submit(request({ n: 3 })),
    ];
    engine.submit(request({ prompt: Uint32Array.from(prompt).reverse(), salt: "aborted" }));
    for (let i = 0; i < 12; i++) engine.step();
    engine.engine.abort(4);
    const later = engine.submit(request({ priority: isRecurrent ? "HIGH" : "NORMAL" }))[0]!;
    engine.run();
    const { preemptions } = engine.engine.scheduler;
    engine.free();
    for (const { tokens } of [...answers, later]) expect(tokens).toEqual(greedy);
    // A run in which these never happened would prove nothing.
    expect(later.cachedTokens).toBe(32);
    const copies = isRecurrent ? 1 : seen.copies;
    expect(Math.min(preemptions, seen.chunks, copies)).toBeGreaterThan(0);
  }, 120_000);
});

function byToken(top: readonly { token: number; logprob: number }[]): number[] {
  return top.toSorted((a, b) => a.token - b.token).map(({ logprob }) => logprob);
}

function logSoftmax(x: readonly number[]): number[] {
  const most = Math.max(...x);
  const sum = x.reduce((total, value) => total + Math.exp(value - most), 0);
  return x.map((value) => value - most - Math.log(sum));
}

function distance(found: readonly number[], expected: readonly number[]): number {
  expect(found.length).toBe(expected.length);
  return Math.max(...found.map((x, i) => Math.abs(x - expected[i]!)));
}
