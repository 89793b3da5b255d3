// The default model in a crowd: what mlx-lm answers alone (scripts/goldens/smollm2.py), and no word of one
// request in another's answer.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { join } from "node:path";
import { defaultModelPath } from "../../ffi/native.ts";
import { type LoadedModel, loadModel } from "../../src/model/load.ts";
import { openTextModel } from "../../src/text/text-model.ts";
import { deviceOf } from "../support/devices.ts";
import { type Answer, makeEngine } from "../support/engine.ts";
import { useMlx } from "../support/mlx.ts";
import { makeRandom } from "../support/random.ts";

let model: LoadedModel;
afterAll(() => {
  model.free();
});
useMlx();
beforeAll(() => {
  model = loadModel(defaultModelPath(), { device: deviceOf("cpu") });
});

type Golden = { prompt: number[]; tokens: number[] };
const goldens: Golden[] = await Bun.file(
  join(import.meta.dir, "../golden/smollm2/tokens.json"),
).json();

test("24 prompts that join and leave at random get the tokens that mlx-lm gives each alone", () => {
  expect(goldens).toHaveLength(24);
  const random = makeRandom(24);
  const engine = makeEngine(model, { maxBatch: 16, blocks: 100, tokenBudget: 128 });
  const answers: [Answer, number[]][] = [];
  for (const { prompt, tokens } of goldens) {
    const maxTokens = 16 + random.below(49);
    const request = { prompt: Uint32Array.from(prompt), maxTokens, sampling: { temperature: 0 } };
    const [answer] = engine.submit(request);
    answers.push([answer!, tokens.slice(0, maxTokens)]);
    for (let i = random.below(4); i > 0; i--) engine.step();
  }
  engine.run();
  for (const [answer, expected] of answers) expect(answer.tokens).toEqual(expected);
  engine.free();
}, 180_000);

const secrets = [
  ["otter", "violin", "saffron", "glacier", "lantern", "walnut", "comet", "harbor"],
  ["pepper", "meadow", "anchor", "crystal", "thunder", "velvet", "cactus", "marble"],
].flat();

test("16 requests with a secret word each: no word shows in another's answer", () => {
  const { chat, tokenizer, stopTokens } = openTextModel(defaultModelPath());
  const engine = makeEngine(model, { maxBatch: 16, blocks: 100 });
  const answers = secrets.map((secret) => {
    const content = `The secret word is "${secret}". Repeat the secret word three times.`;
    const { ids } = chat!({ messages: [{ role: "user", content }], addGenerationPrompt: true });
    const [answer] = engine.submit({
      prompt: Uint32Array.from(ids),
      maxTokens: 32,
      stopTokens: [...stopTokens],
      sampling: { temperature: 0 },
    });
    return answer!;
  });
  engine.run();
  const texts = answers.map(({ tokens }) => tokenizer.decode(tokens).toLowerCase());
  // The model must have understood, or the test would prove nothing.
  const repeated = texts.filter((text, i) => text.includes(secrets[i]!));
  expect(repeated.length).toBeGreaterThan(12);
  const leaked = texts.flatMap((text, i) =>
    secrets.filter((secret, j) => j !== i && text.includes(secret)),
  );
  expect(leaked).toEqual([]);
  engine.free();
}, 120_000);
