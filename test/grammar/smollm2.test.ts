// The default model under many schemas, at temperature 1, twelve in a batch with free rows between: every
// document is valid, and nobody else's words change.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { Ajv2020 } from "ajv/dist/2020";
import addFormats from "ajv-formats";
import { defaultModelPath, findLibrary } from "../../ffi/native.ts";
import { EngineClient } from "../../src/engine/client.ts";
import type { EngineRequest } from "../../src/engine/protocol.ts";
import { Grammars } from "../../src/grammar/grammars.ts";
import { openTextModel } from "../../src/text/text-model.ts";
import { schemas } from "../support/schemas.ts";

/** `SCHEMAS=100 npm test -- test/grammar/smollm2.test.ts` takes minutes. */
const COUNT = Number(process.env.SCHEMAS ?? 12);
const [HELD, FREE, MAX_TOKENS] = [12, 2, 96];
const path = defaultModelPath();
const { chat, tokenizer, stopTokens } = openTextModel(path);
let engine: EngineClient;
let size: number;
const grammars = new Grammars();

beforeAll(async () => {
  engine = await EngineClient.start({ library: findLibrary(), device: "cpu", trace: false });
  ({ vocabulary: size } = await engine.load("model", path, { maxBatch: HELD + FREE }));
});
afterAll(async () => {
  await Promise.all([engine.stop(), grammars.stop()]);
});

type Answer = { text: string; finished: string | undefined };

async function ask(content: string, more: Partial<EngineRequest>): Promise<Answer> {
  const { ids } = chat!({ messages: [{ role: "user", content }], addGenerationPrompt: true });
  const tokens: number[] = [];
  let finished: string | undefined;
  for await (const event of engine.submit("model", {
    prompt: Uint32Array.from(ids),
    maxTokens: MAX_TOKENS,
    stopTokens: [...stopTokens],
    sampling: { temperature: 0 },
    ...more,
  })) {
    if (event.token !== undefined) tokens.push(event.token);
    ({ finished } = event);
  }
  return { text: tokenizer.decode(tokens), finished };
}

async function askFor(schema: Record<string, unknown>, seed: number): Promise<Answer> {
  const grammar = {
    vocabulary: { path, size, stopTokens: [...stopTokens], markers: [] },
    format: JSON.stringify({ type: "json_schema", json_schema: schema }),
    strict: [JSON.stringify(schema)],
  };
  await grammars.prepare(grammar, engine, { key: "a", level: 1 });
  return ask("Answer in JSON: a person, a place and a number.", {
    grammar,
    sampling: { temperature: 1, seed },
  });
}

const freeQuestions = Array.from({ length: 4 }, (_, i) => `What is ${i} plus ${2 * i + 1}?`);

/** So many at once, each when one before it has ended. */
async function inTurn<T, R>(items: readonly T[], atOnce: number, work: (item: T) => Promise<R>) {
  const results: R[] = [];
  let next = 0;
  await Promise.all(
    Array.from({ length: atOnce }, async () => {
      while (next < items.length) {
        const index = next++;
        results[index] = await work(items[index]!);
      }
    }),
  );
  return results;
}

test(`${COUNT} schemas at temperature 1 give valid documents, and free rows do not notice`, async () => {
  const all = schemas(COUNT, 9);
  const ajv = new Ajv2020({ strict: false });
  addFormats.default(ajv);
  const alone = await inTurn(freeQuestions, FREE, (question) => ask(question, {}));
  const among: Answer[] = [];
  let isOver = false;
  const free = inTurn(Array.from({ length: FREE }), FREE, async () => {
    while (!isOver || among.length < freeQuestions.length) {
      const index = among.push({ text: "", finished: undefined }) - 1;
      among[index] = await ask(freeQuestions[index % freeQuestions.length]!, {});
    }
  });
  const documents = await inTurn([...all.entries()], HELD, ([seed, schema]) =>
    askFor(schema, seed),
  );
  isOver = true;
  await free;
  const wrong = documents.flatMap(({ text, finished }, i) => {
    if (finished === "length") return [];
    const validate = ajv.compile(all[i]!);
    try {
      if (finished === "stop" && validate(JSON.parse(text))) return [];
    } catch {}
    return [{ schema: all[i], text, finished, errors: validate.errors }];
  });
  expect(wrong).toEqual([]);
  // Those that were cut off say little: most must have come to their end.
  const whole = documents.filter(({ finished }) => finished === "stop").length;
  expect(whole).toBeGreaterThan(COUNT / 2);
  expect(among.length).toBeGreaterThanOrEqual(freeQuestions.length);
  among.forEach((answer, i) => {
    expect(answer).toEqual(alone[i % freeQuestions.length]!);
  });
}, 600_000);
