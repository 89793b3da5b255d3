// Structured output over HTTP: the model is random, but its answers match the constraint.
import { describe, expect, test } from "bun:test";
import { Ajv2020 } from "ajv/dist/2020";
import type { ChatChunk, ChatResponse } from "../../../src/api/openai/chat.ts";
import type { CompletionChunk, CompletionResponse } from "../../../src/api/openai/completions.ts";
import { expectError, expectRefusal, expectUnharmed, SECRET } from "../../support/fault-checks.ts";
import { events, startTestServer } from "../../support/server.ts";
import { useTestServer } from "../../support/use-server.ts";

const [chatPath, textPath] = ["/v1/chat/completions", "/v1/completions"];
const END = 258;
const ajv = new Ajv2020();
const server = useTestServer();

/** The same prompt for both endpoints. */
const prompts = { messages: [{ role: "user", content: SECRET }], prompt: SECRET };
const bodyOf = (path: string, fields: object) => ({
  ...(path === chatPath ? { messages: prompts.messages } : { prompt: prompts.prompt }),
  max_tokens: 400,
  ...fields,
});

type Answer = { text: string; finish: string };

/** The text of each choice. */
async function ask(fields: object, path = chatPath, to = server): Promise<Answer[]> {
  const response = await to.post(path, bodyOf(path, fields));
  const text = await response.text();
  expect([response.status, text]).toEqual([200, text]);
  if (path === textPath) {
    const { choices } = JSON.parse(text) as CompletionResponse;
    return choices.map((choice) => ({ text: choice.text, finish: choice.finish_reason }));
  }
  const { choices } = JSON.parse(text) as ChatResponse;
  return choices.map(({ message, finish_reason }) => {
    expect(message.tool_calls).toBeUndefined();
    return { text: message.content!, finish: finish_reason };
  });
}

/** The same, joined from a stream. */
async function askStreamed(fields: object, path = chatPath): Promise<Answer[]> {
  const response = await server.post(path, bodyOf(path, { ...fields, stream: true }));
  expect(response.status).toBe(200);
  const all = await events(response);
  expect(all.pop()).toBe("[DONE]");
  const answers: Answer[] = [];
  for (const { choices } of all as (ChatChunk | CompletionChunk)[]) {
    for (const choice of choices) {
      answers[choice.index] ??= { text: "", finish: "" };
      const answer = answers[choice.index]!;
      answer.text += "text" in choice ? choice.text : (choice.delta.content ?? "");
      answer.finish += choice.finish_reason ?? "";
    }
  }
  return answers;
}

const person = {
  type: "object",
  properties: {
    name: { type: "string", minLength: 1, maxLength: 8 },
    age: { type: "integer", minimum: 0, maximum: 150 },
    tags: { type: "array", items: { enum: ["a", "é", 'q"', "<|im_end|>", null] }, maxItems: 3 },
    home: { anyOf: [{ type: "null" }, { $ref: "#/$defs/place" }] },
    Größe: { type: "number", exclusiveMinimum: 0.5, maximum: 2.5 },
  },
  required: ["name", "age", "tags", "home", "Größe"],
  additionalProperties: false,
  $defs: {
    place: {
      type: "object",
      properties: { code: { type: "string", pattern: "^[A-Z]{2}-\\d{3}$" } },
      required: ["code"],
      additionalProperties: false,
    },
  },
};
const isPerson = ajv.compile(person);
const schemaFormat = (schema: object) => ({
  response_format: { type: "json_schema", json_schema: { name: "x", schema, strict: true } },
});

const isJson = (check: (value: unknown) => boolean) => (text: string) => check(JSON.parse(text));
const isObject = (value: unknown) =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const choices = ["yes", "no", "né", 'a "quoted" \\ word', "<|im_end|>", "two\nlines"];
const grammar = `root ::= "(" root ")" | word # nested
word ::= [a-f]{2,4} | "é"`;

/** Makes closing a string or an object likelier: a random model would rarely do it. */
const closing = { logit_bias: { 34: 4, 44: -4, 91: -4, 123: -4, 125: 2 } };

type Form = [name: string, fields: object, has: (text: string) => boolean];
const forms: Form[] = [
  ["response_format json_schema", schemaFormat(person), isJson(isPerson)],
  [
    "response_format json_object",
    { response_format: { type: "json_object" }, ...closing },
    isJson(isObject),
  ],
  [
    "json_schema without a schema",
    { response_format: { type: "json_schema", json_schema: { name: "x" } }, ...closing },
    isJson(isObject),
  ],
  ["structured_outputs.json", { structured_outputs: { json: person } }, isJson(isPerson)],
  [
    "structured_outputs.json as a string",
    { structured_outputs: { json: JSON.stringify(person) } },
    isJson(isPerson),
  ],
  [
    "structured_outputs.json_object",
    { structured_outputs: { json_object: true }, ...closing },
    isJson(isObject),
  ],
  ...[
    (regex: string) => ({ structured_outputs: { regex } }),
    (regex: string) => ({ guided_regex: regex }),
  ].map((fields): Form => {
    const pattern = "[A-Z][a-z]{2,5}(, é\\d+(\\.\\d)?)?";
    return [
      Object.keys(fields(""))[0]!,
      fields(pattern),
      (text) => RegExp(`^${pattern}$`).test(text),
    ];
  }),
  [
    "structured_outputs.choice",
    { structured_outputs: { choice: choices } },
    (text) => choices.includes(text),
  ],
  ["guided_choice", { guided_choice: choices }, (text) => choices.includes(text)],
  ...[{ structured_outputs: { grammar } }, { guided_grammar: grammar }].map(
    (fields): Form => [
      Object.keys(fields)[0]!,
      { ...fields, logit_bias: { 40: -2 } },
      (text) => {
        const [, open, word, close] = /^(\(*)([a-f]{2,4}|é)(\)*)$/.exec(text) ?? [];
        return word !== undefined && open!.length === close!.length;
      },
    ],
  ),
  ["guided_json", { guided_json: person }, isJson(isPerson)],
];

describe("an answer matches the requested format", () => {
  test.each(forms)("%s", async (_, fields, has) => {
    for (const path of [chatPath, textPath]) {
      const asked = { ...fields, n: 4, seed: 7 };
      const whole = await ask(asked, path);
      expect(whole).toHaveLength(4);
      for (const { text, finish } of whole)
        expect([text, has(text), finish]).toEqual([text, true, "stop"]);
      expect(await askStreamed(asked, path)).toEqual(whole);
    }
  });
});

describe("an answer is one of the choices, never a mix of two", () => {
  const words = ["ccc", "abc", "abb", "école", "étape", "école de"];
  const rules = `${words.map((_, i) => `w${i}`).join(" | ")}
${words.map((word, i) => `w${i} ::= "${word}"`).join("\n")}`;
  const quoted = (text: string): string => JSON.parse(text);
  const ways: [name: string, fields: object, wordOf: (text: string) => string][] = [
    ["choice", { guided_choice: words }, (text) => text],
    ["regex", { guided_regex: words.join("|") }, (text) => text],
    ["grammar", { guided_grammar: `root ::= "${words.join('" | "')}"` }, (text) => text],
    ["grammar of rules", { guided_grammar: `root ::= ${rules}` }, (text) => text],
    ["enum", schemaFormat({ enum: words }), quoted],
    ["anyOf", schemaFormat({ anyOf: words.map((word) => ({ const: word })) }), quoted],
    ["pattern", schemaFormat({ type: "string", pattern: `^(${words.join("|")})$` }), quoted],
  ];

  test.each(ways)("%s", async (_, fields, wordOf) => {
    const answers = await ask({ ...fields, n: 64, seed: 1, temperature: 2, max_tokens: 40 });
    for (const { text, finish } of answers) {
      expect([words.includes(wordOf(text)), text, finish]).toEqual([true, text, "stop"]);
    }
    expect(new Set(answers.map(({ text }) => text)).size).toBeGreaterThan(2);
  });
});

test("a seeded answer is the same alone and in a batch", async () => {
  const asked = forms.map(([, fields], i) => ({ ...fields, seed: i, max_tokens: 80 }));
  const alone: Answer[][] = [];
  for (const fields of asked) alone.push(await ask(fields));
  expect(await Promise.all(asked.map((fields) => ask(fields)))).toEqual(alone);
});

test("unconstrained answers do not change next to constrained ones in a batch", async () => {
  const free = Array.from({ length: 6 }, (_, i) => ({
    messages: [{ role: "user", content: `${i}: ${SECRET}` }],
    temperature: 0,
    max_tokens: 120,
  }));
  const alone: Answer[][] = [];
  for (const fields of free) alone.push(await ask(fields));
  const held = forms.map(([, fields]) => ask({ ...fields, n: 2 }));
  expect(await Promise.all(free.map((fields) => ask(fields)))).toEqual(alone);
  for (const [i, answers] of (await Promise.all(held)).entries()) {
    const [, , has] = forms[i]!;
    for (const { text } of answers) expect([text, has(text)]).toEqual([text, true]);
  }
});

describe("with a constraint", () => {
  const word = { structured_outputs: { regex: "[a-f]{6,12}" } };

  test("log-probabilities and token ids are those of the text, and of the end", async () => {
    const asked = { ...word, seed: 3, return_token_ids: true };
    const chat = await server.post(
      chatPath,
      bodyOf(chatPath, { ...asked, logprobs: true, top_logprobs: 3 }),
    );
    const [first] = ((await chat.json()) as ChatResponse).choices;
    const { content } = first!.message;
    expect(content).toMatch(/^[a-f]{6,12}$/);
    expect(first!.token_ids).toEqual([...Buffer.from(content!), END]);
    const scores = first!.logprobs!.content!;
    expect(scores.map(({ token }) => token).join("")).toBe(content!);
    for (const { logprob, top_logprobs } of scores) {
      // The alternatives are unconstrained: most of them do not match.
      expect(logprob).toBeLessThan(0);
      expect(top_logprobs).toHaveLength(3);
    }
    const text = await server.post(textPath, bodyOf(textPath, { ...asked, logprobs: 1 }));
    const [second] = ((await text.json()) as CompletionResponse).choices;
    expect(second!.token_ids).toEqual([...Buffer.from(second!.text), END]);
    expect(second!.logprobs!.tokens.join("")).toBe(second!.text);
  });

  test("an answer may be cut off by a stop string, a stop token or max_tokens", async () => {
    const long = { structured_outputs: { regex: "[a-c]{100}" }, seed: 5 };
    const [{ text } = { text: "" }] = await ask(long);
    const before = (stop: string) => ({ text: text.slice(0, text.indexOf(stop)), finish: "stop" });
    expect(await ask({ ...long, stop: ["b"] })).toEqual([before("b")]);
    expect(await ask({ ...long, stop_token_ids: [99] })).toEqual([before("c")]);
    expect(await ask({ ...long, max_tokens: 7 })).toEqual([
      { text: text.slice(0, 7), finish: "length" },
    ]);
  });

  test("every sampling method obeys it", async () => {
    for (const fields of [
      { temperature: 0 },
      { temperature: 2, top_p: 0.01 },
      { top_k: 1 },
      { min_p: 0.9 },
      { frequency_penalty: 2, presence_penalty: 2, repetition_penalty: 10 },
      // Biases towards tokens that the mask forbids, and away from those that it allows.
      { logit_bias: { [END]: 100, 122: 100, 97: -100 } },
    ]) {
      const [answer] = await ask({ ...word, ...fields });
      expect(answer).toEqual({ text: expect.stringMatching(/^[a-f]{6,12}$/), finish: "stop" });
    }
  });

  test("prompts share prefix blocks, but not constraints", async () => {
    const messages = [{ role: "user", content: SECRET.repeat(20) }];
    const asked = { ...word, messages, seed: 1 };
    const [expected] = await ask({ ...asked, cache_salt: "another's" });
    await ask({ messages, structured_outputs: { choice: ["no"] } });
    const response = await server.post(chatPath, asked);
    const { choices, usage } = (await response.json()) as ChatResponse;
    expect(usage.prompt_tokens_details.cached_tokens).toBeGreaterThan(64);
    expect(choices[0]!.message.content).toBe(expected!.text);
  });
});

describe("an unsupported constraint is rejected by name:", () => {
  const choice = ["yes"];
  const twice: [param: string, fields: object][] = [
    ["structured_outputs", { structured_outputs: { choice, regex: "a" } }],
    [
      "structured_outputs",
      { response_format: { type: "json_object" }, structured_outputs: { choice } },
    ],
    ["guided_choice", { structured_outputs: { choice }, guided_choice: choice }],
    ["guided_grammar", { guided_json: {}, guided_grammar: 'root ::= "a"' }],
  ];
  const unended: [param: string, fields: object][] = [
    ["ignore_eos", { structured_outputs: { choice }, ignore_eos: true }],
    ["min_tokens", { guided_regex: "a+", min_tokens: 2 }],
  ];
  const wrong: [param: string, fields: object][] = [
    ["guided_json", { guided_json: `{"${SECRET}"` }],
    ["structured_outputs", { structured_outputs: { json: "5" } }],
    ["guided_json", { guided_json: 5 }],
    ["structured_outputs.choice", { structured_outputs: { choice: [] } }],
    ["structured_outputs.choice.1", { structured_outputs: { choice: ["a", 5] } }],
    ["guided_choice", { guided_choice: Array(2000).fill(SECRET) }],
    ["guided_regex", { guided_regex: "" }],
    ["guided_regex", { guided_regex: "(a" }],
    ["guided_grammar", { guided_grammar: "root ::= missing" }],
    ["response_format.type", { response_format: { type: SECRET } }],
    ["response_format.json_schema", { response_format: { type: "json_schema" } }],
    [
      "response_format.json_schema.name",
      { response_format: { type: "json_schema", json_schema: { name: "a b", schema: {} } } },
    ],
  ];

  test.each([...twice, ...unended, ...wrong])("%s", async (param, fields) => {
    for (const path of [chatPath, textPath]) {
      for (const stream of [false, true]) {
        const answer = await server.post(path, bodyOf(path, { ...fields, stream }));
        const { message } = await expectRefusal(answer, { status: 400, param });
        expect(message).toContain(`'${param}'`);
      }
    }
  });

  const keywords: [keyword: string, schema: object][] = [
    ["if", { if: { type: "string" }, else: { minimum: 3 } }],
    ["not", { not: { type: "string" } }],
    ["contains", { type: "array", contains: { type: "null" } }],
    ["uniqueItems", { type: "array", uniqueItems: true }],
    ["multipleOf", { type: "number", multipleOf: 3 }],
    ["dependentRequired", { type: "object", dependentRequired: { a: ["b"] } }],
    ["oneOf", { oneOf: [{ type: "string" }, { type: "string", maxLength: 3 }] }],
    ["pattern", { type: "string", pattern: "(a)\\1" }],
    ["format", { type: "string", format: "json-pointer" }],
    ["$ref", { $ref: "#/nowhere" }],
    ["type", { type: "text" }],
  ];

  test.each(keywords)("%s, as a schema's keyword", async (keyword, schema) => {
    const nested = { type: "object", properties: { a: schema }, required: ["a"] };
    for (const each of [schema, nested]) {
      const body = bodyOf(chatPath, schemaFormat(each));
      const answer = await server.post(chatPath, body);
      const { message } = await expectRefusal(answer, { status: 400, param: "response_format" });
      expect(message).toStartWith(`Invalid 'response_format': ${keyword} `);
    }
    const tool = (strict: boolean) => ({
      tools: [{ type: "function", function: { name: "f", parameters: nested, strict } }],
      max_tokens: 2,
    });
    const answer = await server.post(chatPath, bodyOf(chatPath, tool(true)));
    const { message } = await expectRefusal(answer, { status: 400, param: "tools" });
    expect(message).toContain(` ${keyword} at /properties/a `);
    // Without strict, as much of it as possible is enforced.
    await ask(tool(false));
  });
});

describe("when something goes wrong", () => {
  const endless = { guided_grammar: "root ::= [a-z]{3000}", max_tokens: 3000 };
  /** Takes a second or so. */
  const slow = (name: string) => ({
    guided_grammar: `root ::= ${Array.from({ length: 5000 }, (_, i) => `"${name}${i}" [a-z]`).join(" | ")}`,
  });
  const [, , isPersonText] = forms[0]!;

  const count = (name: string) => server.metric(`mlx_serve_${name}`);

  /** A request whose client disconnects once the condition holds. */
  const leave = async (fields: object, until: () => Promise<boolean>) => {
    const leaving = new AbortController();
    const { signal } = leaving;
    const response = server.post(chatPath, bodyOf(chatPath, fields), { signal });
    const text = response.then((each) => each.text());
    while (!(await until())) await Bun.sleep(1);
    leaving.abort();
    expect(await text.catch(({ name }: Error) => name)).toBe("AbortError");
  };

  test("a client that disconnects during compilation ends its request", async () => {
    const isRunning = async () => (await count("requests_running")) > 0;
    await leave(endless, isRunning);
    await server.settled();
    await leave({ ...endless, stream: true, n: 3 }, isRunning);
    await server.settled();
    for (const stream of [false, true]) {
      const asked = { ...slow(`stream ${stream}`), stream };
      let isCompiled = false;
      const staying = server.post(chatPath, bodyOf(chatPath, asked)).then((response) => {
        isCompiled = true;
        return response.text();
      });
      await leave(asked, async () => (await count("http_requests_admitted")) === 2);
      while ((await count("http_requests_admitted")) === 2) await Bun.sleep(1);
      expect(isCompiled).toBeFalse();
      await staying;
    }
    expect(isPersonText((await ask(schemaFormat(person)))[0]!.text)).toBeTrue();
  }, 20_000);

  test.each([
    ["engine", () => server.serving.engine.kill()],
    ["thread that follows grammars", () => server.serving.grammars.stop()],
  ])(
    "the %s dies: running answers get an error, and the next one is constrained again",
    async (_, end) => {
      const asked = { ...schemaFormat(person), seed: 9 };
      const expected = await ask(asked);
      const stream = await server.post(chatPath, bodyOf(chatPath, { ...endless, stream: true }));
      const whole = server.post(textPath, bodyOf(textPath, endless));
      const compiling = server.post(chatPath, bodyOf(chatPath, slow(_)));
      while ((await count("requests_running")) < 2) await Bun.sleep(1);
      await end();
      const all = await events(stream);
      expect(all.at(-1)).toBe("[DONE]");
      expectError(all.at(-2));
      await expectRefusal(await whole, { status: 500 });
      // Whether it is answered depends on how far the compilation was, but it must settle.
      await compiling;
      expect(await ask(asked)).toEqual(expected);
      expect(await askStreamed(asked)).toEqual(expected);
    },
  );
});

test("preempted answers keep their constraint", async () => {
  await using small = await startTestServer({ args: ["--block-pool-size", "12"] });
  const asked = Array.from({ length: 8 }, (_, i) => ({ ...forms[i]![1], seed: i }));
  const alone: Awaited<ReturnType<typeof ask>>[] = [];
  for (const fields of asked) alone.push(await ask(fields));
  // At first their grammars are compiled: how many of them run at once depends on how long that takes.
  for (let round = 0; round < 2; round++) {
    const together = await Promise.all(asked.map((fields) => ask(fields, chatPath, small)));
    expect(together).toEqual(alone);
  }
  for (const [i, [answer]] of alone.entries()) {
    const [, , has] = forms[i]!;
    expect([answer, has(answer!.text)]).toEqual([answer, true]);
  }
  expect(await small.metric("mlx_serve_preemptions_total")).toBeGreaterThan(0);
  await expectUnharmed(small);
});
