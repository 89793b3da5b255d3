// Measures the cost of grammars: steps of 16 rows, unconstrained and constrained by a JSON schema, interleaved.
//   npm run -s bench:grammar [-- rows [tokens [rounds]]]
import { defaultModelPath, engineSetup } from "../../ffi/native.ts";
import { EngineClient } from "../../src/engine/client.ts";
import type { EngineRequest } from "../../src/engine/protocol.ts";
import type { Grammar } from "../../src/grammar/grammar.ts";
import { Grammars } from "../../src/grammar/grammars.ts";
import { openTextModel } from "../../src/text/text-model.ts";

const [rows = 16, tokens = 64, rounds = 5] = process.argv.slice(2).map(Number);
const path = defaultModelPath();
const { chat, stopTokens } = openTextModel(path);
const steps: number[] = [];
const engine = await EngineClient.start(engineSetup(process.env), {
  onStep: ({ ms, decodeTokens, prefillTokens }) => {
    if (prefillTokens === 0 && decodeTokens === rows) steps.push(ms);
  },
});
const grammars = new Grammars();
const { vocabulary: size } = await engine.load("model", path);
const person = {
  type: "object",
  properties: {
    name: { type: "string" },
    age: { type: "integer", minimum: 0, maximum: 150 },
    address: {
      type: "object",
      properties: { street: { type: "string" }, city: { type: "string" } },
      required: ["street", "city"],
    },
    tags: { type: "array", items: { type: "string" } },
  },
  required: ["name", "age", "address", "tags"],
};
const schema = { type: "array", items: person, minItems: 20 };
const grammar: Grammar = {
  vocabulary: { path, size, stopTokens: [...stopTokens], markers: [] },
  format: JSON.stringify({ type: "json_schema", json_schema: schema }),
  strict: [JSON.stringify(schema)],
};
await grammars.prepare(grammar, engine, { key: "bench", level: 1 });

async function measure(held: boolean): Promise<number[]> {
  steps.length = 0;
  const requests = Array.from({ length: rows }, (_, i): EngineRequest => {
    const content = `Write a list of ${i + 20} people as JSON.`;
    const { ids } = chat!({ messages: [{ role: "user", content }], addGenerationPrompt: true });
    return {
      prompt: Uint32Array.from(ids),
      maxTokens: tokens,
      sampling: { temperature: 1, seed: i },
      ...(held && { grammar }),
    };
  });
  await Promise.all(
    requests.map(async (request) => {
      for await (const _ of engine.submit("model", request));
    }),
  );
  return steps.slice();
}

const median = (values: readonly number[]) =>
  values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]!;

await measure(true);
const all = { free: [] as number[], held: [] as number[] };
for (let round = 0; round < rounds; round++) {
  all.free.push(...(await measure(false)));
  all.held.push(...(await measure(true)));
}
const [free, held] = [median(all.free), median(all.held)];
console.log(
  `${rows} rows, median step: free ${free.toFixed(1)} ms, constrained by a schema ${held.toFixed(1)} ms`,
);
console.log(`the grammar costs ${(((held - free) / free) * 100).toFixed(1)}% of a step`);
await Promise.all([engine.stop(), grammars.stop()]);
