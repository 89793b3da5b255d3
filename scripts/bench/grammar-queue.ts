// Measures how one key's grammars delay another key: the time of a request with a new small schema, from compilation to
// the last of 16 tokens, while the other key is idle and under its worst load.
//   npm run -s bench:grammar-queue [-- requests]
import { defaultModelPath, engineSetup } from "../../ffi/native.ts";
import { EngineClient } from "../../src/engine/client.ts";
import type { EngineEvent } from "../../src/engine/protocol.ts";
import type { EventStream } from "../../src/engine/stream.ts";
import type { Grammar } from "../../src/grammar/grammar.ts";
import { Grammars } from "../../src/grammar/grammars.ts";
import { openTextModel } from "../../src/text/text-model.ts";

const [requests = 20] = process.argv.slice(2).map(Number);
const path = defaultModelPath();
const { chat, stopTokens } = openTextModel(path);
const engine = await EngineClient.start(engineSetup(process.env));
const grammars = new Grammars();
const { vocabulary: size } = await engine.load("model", path);
const vocabulary = { path, size, stopTokens: [...stopTokens], markers: [] };
const messages = [{ role: "user", content: "Answer in JSON: a person." }];
const { ids } = chat!({ messages, addGenerationPrompt: true });

const ebnf = (text: string): Grammar => ({
  vocabulary,
  format: JSON.stringify({ type: "grammar", grammar: text }),
  strict: [],
});

async function begin(
  key: string,
  grammar: Grammar,
  signal?: AbortSignal,
): Promise<EventStream<EngineEvent>> {
  const grammarLane = await grammars.prepare(grammar, engine, { key, level: 1, signal });
  return engine.submit("model", {
    prompt: Uint32Array.from(ids),
    maxTokens: 16,
    sampling: { temperature: 1, seed: 1 },
    grammar,
    grammarLane,
  });
}

let made = 0;
const unique = () => `n${made++}`;

async function request(): Promise<number> {
  const properties = { [unique()]: { type: "string" }, age: { type: "integer" } };
  const schema = { type: "object", properties, required: Object.keys(properties) };
  const format = JSON.stringify({ type: "json_schema", json_schema: schema });
  const start = performance.now();
  for await (const _ of await begin("other", { vocabulary, format, strict: [] }));
  return performance.now() - start;
}

/** A schema that takes seconds to compile. */
const heavy = () => ebnf(`root ::= ([a-z]{1,100} "${unique()}"){1,100}`);
/** A grammar that compiles quickly but takes seconds per token mask. */
const ambiguous = () => ebnf(`root ::= "" | root root | [a-z] | "${unique()}"`);

/** Repeats it concurrently until the returned function is called. */
function repeat(count: number, task: (signal: AbortSignal) => Promise<unknown>) {
  const over = new AbortController();
  const running = Array.from({ length: count }, async () => {
    while (!over.signal.aborted) await task(over.signal).catch(() => {});
  });
  return async () => {
    over.abort();
    await Promise.all(running);
  };
}

async function readToEnd(grammar: Grammar, signal: AbortSignal): Promise<void> {
  const events = await begin("attacker", grammar, signal);
  signal.addEventListener("abort", () => events.leave());
  for await (const _ of events);
}

const loads: Record<string, () => () => Promise<void>> = {
  alone: () => async () => {},
  "30 heavy grammars wait": () => repeat(30, (signal) => readToEnd(heavy(), signal)),
  "30 heavy grammars are sent and abandoned": () =>
    repeat(30, (signal) =>
      begin("attacker", heavy(), AbortSignal.any([signal, AbortSignal.timeout(200)])),
    ),
  "4 answers whose masks take seconds": () => repeat(4, (signal) => readToEnd(ambiguous(), signal)),
};

const at = (values: readonly number[], share: number) =>
  values.toSorted((a, b) => a - b)[Math.floor((values.length - 1) * share)]!.toFixed(0);

// Warms up both keys' threads.
for await (const _ of await begin("attacker", ebnf('root ::= "a"')));
for (let i = 0; i < 5; i++) await request();
for (const [name, start] of Object.entries(loads)) {
  const stop = start();
  await Bun.sleep(1000);
  const times: number[] = [];
  for (let i = 0; i < requests; i++) times.push(await request());
  await stop();
  console.log(
    `${name.padEnd(42)} median ${at(times, 0.5)} ms, p90 ${at(times, 0.9)} ms, longest ${at(times, 1)} ms`,
  );
}
await Promise.all([engine.stop(), grammars.stop()]);
process.exit(0);
