// Schemas, regular expressions and grammars crafted to block the server, exhaust its memory or crash the
// compiler: each is rejected or compiled in bounded time, and other clients are served meanwhile.
import { describe, expect, spyOn, test } from "bun:test";
import { defaultModelPath } from "../../../ffi/native.ts";
import type { ChatResponse } from "../../../src/api/openai/chat.ts";
import { GrammarThread } from "../../../src/grammar/grammar-thread.ts";
import { expectNoBlock } from "../../support/blocking.ts";
import { expectError, expectRefusal, SECRET } from "../../support/fault-checks.ts";
import { keyEntry } from "../../support/keys.ts";
import { events, startTestServer } from "../../support/server.ts";
import { useTestServer } from "../../support/use-server.ts";

const path = "/v1/chat/completions";
const server = useTestServer();

const common = { messages: [{ role: "user", content: SECRET }], max_tokens: 8, seed: 1 };
const schemaField = (schema: unknown) => ({
  response_format: { type: "json_schema", json_schema: { name: "x", schema } },
});
const many = <T>(length: number, make: (i: number) => T): T[] =>
  Array.from({ length }, (_, i) => make(i));
const record = <T>(length: number, make: (i: number) => [string, T]) =>
  Object.fromEntries(many(length, make));
/** Wraps a schema `depth` times. */
const nested = (depth: number, wrap: (inner: object) => object, inner: object): object =>
  depth === 0 ? inner : nested(depth - 1, wrap, wrap(inner));
/** The maximum size of a body, minus room for the rest of it. */
const MOST = 16 * 2 ** 20 - 1000;
const chain = (length: number, key: string, end?: object) => ({
  $defs: {
    ...record(length, (i) => [
      `d${i}`,
      { [key]: [{ $ref: `#/$defs/d${i + 1}` }, { $ref: `#/$defs/d${i + 1}` }] },
    ]),
    ...(end && { [`d${length}`]: end }),
  },
  $ref: "#/$defs/d0",
});

type Answer = { status: number; text: string; param: string | null };

async function ask(fields: object): Promise<Answer> {
  const response = await server.post(path, { ...common, ...fields });
  return await read(response.status, await response.text(), response.headers);
}

/** Checks that anything but 200 is a proper error. */
async function read(status: number, body: string, headers: Headers): Promise<Answer> {
  if (status !== 200) {
    const { param } = await expectRefusal({ status, headers, body }, { status: 400 });
    return { status, text: "", param };
  }
  const { choices } = JSON.parse(body) as ChatResponse;
  return { status, text: choices[0]!.message.content ?? "", param: null };
}

/** The same, while checking that other clients are served. */
async function askAside(fields: object, { port } = server): Promise<Answer> {
  const body = JSON.stringify({ ...common, ...fields });
  const response = await expectNoBlock(port, path, body);
  return await read(response.status, response.body, response.headers);
}

/** Checks the status, and that a rejection names the parameter. */
async function expectBounded(fields: object, status: 200 | 400, by = server): Promise<void> {
  const [param] = Object.keys(fields);
  const expected = status === 200 ? { status } : { status, param: param! };
  expect(await askAside(fields, by)).toMatchObject(expected);
}

describe("a hostile schema", () => {
  const schemas: Record<string, [status: 200 | 400, schema: unknown]> = {
    "of arrays in arrays": [200, nested(30, (items) => ({ type: "array", items }), {})],
    "of objects in objects": [400, nested(60, (a) => ({ properties: { a } }), {})],
    "that is deeper than a body may be": [400, nested(110, (items) => ({ items }), {})],
    "that holds itself and need not": [
      200,
      {
        type: "object",
        properties: { next: { anyOf: [{ $ref: "#" }, { type: "null" }] } },
        required: ["next"],
      },
    ],
    "that holds itself and must": [400, { properties: { a: { $ref: "#" } }, required: ["a"] }],
    "that is itself": [400, { $ref: "#" }],
    "of two that are each other": [
      400,
      { $defs: { a: { $ref: "#/$defs/b" }, b: { $ref: "#/$defs/a" } }, $ref: "#/$defs/a" },
    ],
    "of choices between choices": [200, chain(50, "anyOf", { type: "null" })],
    "of choices that lead to nothing": [400, chain(62, "anyOf")],
    "of all of all": [200, chain(50, "allOf", { type: "null" })],
    "of one of many": [400, { oneOf: many(4000, (i) => ({ const: i })) }],
    "of counts within counts": [
      200,
      nested(8, (items) => ({ type: "array", items, minItems: 100, maxItems: 1000 }), {
        type: "integer",
      }),
    ],
    "of a thousand million at least": [400, { type: "array", minItems: 1e9 }],
    "of a thousand million at most": [200, { type: "array", items: {}, maxItems: 1e9 }],
    "of as long a string": [200, { type: "string", maxLength: 1e9 }],
    "of many values": [200, { enum: many(5000, (i) => `v${i}`) }],
    "of too many values": [400, { enum: many(20_000, (i) => `${SECRET} ${i}`) }],
    "of a long value": [400, { const: SECRET.repeat(20_000) }],
    "of too many fields": [
      400,
      { properties: record(20_000, (i) => [`${SECRET}${i}`, { type: "string" }]) },
    ],
    "of a megabyte of nothing": [400, { description: "x".repeat(MOST) }],
    "of a million numbers": [400, { examples: many(900_000, () => 1) }],
    "whose pattern backtracks": [200, { type: "string", pattern: "^(a+)+$" }],
    "whose pattern has many states": [400, { type: "string", pattern: "(a|b)*a(a|b){20}" }],
    "whose pattern counts counts": [400, { type: "string", pattern: "^((a{1,99}){1,99}){1,99}$" }],
    "whose pattern is deep": [
      400,
      { type: "string", pattern: `${"(".repeat(1000)}a${")".repeat(1000)}` },
    ],
    "of many patterns": [
      400,
      { properties: record(200, (i) => [`p${i}`, { pattern: `(a|b)*a(a|b){7}${i}` }]) },
    ],
    "of a number that there is not": [400, { type: "number", minimum: 5e-324, maximum: 5e-324 }],
  };

  test.each(Object.entries(schemas))("%s", async (_, [status, schema]) => {
    await expectBounded(schemaField(schema), status);
  });
});

describe("a hostile regular expression", () => {
  const expressions: Record<string, [status: 200 | 400, source: string]> = {
    "that backtracks": [200, "(a+)+b"],
    "of anything any number of times": [200, "(.*)*x"],
    "that counts counts": [400, "((a{1,1000}){1,1000}){1,1000}"],
    "of many that may be left out": [400, `${"a?".repeat(2000)}a{2000}`],
    "of many states": [400, "(a|b)*a(a|b){30}"],
    "of many words": [400, many(5000, (i) => `w${i}x`).join("|")],
    "that is deep": [400, "(".repeat(50_000) + ")".repeat(50_000)],
    "that is long": [400, "a".repeat(MOST)],
  };

  test.each(Object.entries(expressions))("%s", async (_, [status, source]) => {
    await expectBounded({ guided_regex: source }, status);
  });

  test("that is not supported is rejected, and any other is matched exactly", async () => {
    const refused = [
      ...["(?=a)a", "a(?!b)", "(?<=a)b", "(?<!a)b", "(a)\\1", "(?<n>a)\\k<n>", "\\bword\\b"],
      ...["(?i)a", "\\p{L}", "a**", "*a", "(a", "a)", "[b-a]", "a{2,1}", "\\Aa\\Z", "\\"],
    ];
    for (const source of refused) {
      expect([source, (await ask({ guided_regex: source })).param]).toEqual([
        source,
        "guided_regex",
      ]);
    }
    const followed = [
      ...["^abc$", "^a|b$", "(a|b$)", "[é-ü]{2}", "[^é]", "[一-龥]{2}", "[😀-😏]", "\\u{1F600}"],
      ...[".", "\\s\\S", "[^\\s]{2}", "[\\^a]", "[^\\D]", "[a\\-z]", "a\\-b", '{"a": \\d+}'],
      ...["(ab|cd){2,3}", "a??b", "(|a)b", "x|", "\\t\\n", "ccc|abc|abb"],
    ];
    for (const source of followed) {
      const lenient = source.replaceAll("\\-", "-").replace(/^\{(.*)\}$/, "\\{$1\\}");
      const whole = new RegExp(`^(?:${lenient})$`, "u");
      for (const seed of [1, 2, 3, 4]) {
        const { text } = await ask({ guided_regex: source, seed, temperature: 2, max_tokens: 50 });
        expect([source, text, whole.test(text)]).toEqual([source, text, true]);
      }
    }
  }, 30_000);
});

describe("a hostile grammar", () => {
  const grammars: Record<string, [status: 200 | 400, source: string]> = {
    "that begins with itself": [200, 'root ::= root "a" | "a"'],
    "that begins with itself by way of another": [200, 'root ::= x "a" | "b"\nx ::= root'],
    "that is nothing but itself": [400, "root ::= root"],
    "that never ends": [400, 'root ::= root "a"'],
    "that says one thing in many ways": [200, 'root ::= "" | root root | "a"'],
    "of rules that there are not": [400, "root ::= x"],
    "without a root": [400, 'a ::= "b"'],
    "of a rule that is there twice": [400, 'root ::= "a"\nroot ::= "b"'],
    "that is none": [400, "\0 ::= ()"],
    "of nothing": [200, 'root ::= ""'],
    "that doubles with every rule": [
      200,
      `${many(60, (i) => `${i ? `r${i}` : "root"} ::= r${i + 1} r${i + 1}`).join("\n")}\nr60 ::= "a"`,
    ],
    "of loops in loops": [200, `root ::= ${"(".repeat(100)}"a"${")*".repeat(100)}`],
    "of a count beyond counting": [400, 'root ::= "a"{99999999999999999999}'],
    "of groups in groups": [400, `root ::= ${"(".repeat(50_000)}"a"${")".repeat(50_000)}`],
    "of too many characters": [400, `root ::= "${"a".repeat(300_000)}"`],
    "of a class that is wrong": [400, "root ::= [b-a]"],
    "of characters that cannot be told apart": [400, "root ::= [é-ü]+"],
    "that is broken off": [400, 'root ::= "a'],
    "in the compiler's own words": [400, 'root ::= TagDispatch(("a", x))\nx ::= "b"'],
  };

  test.each(Object.entries(grammars))("%s", async (_, [status, source]) => {
    await expectBounded({ guided_grammar: source }, status);
  });

  test("that crashes the compiler does not affect later requests", async () => {
    const groups = (depth: number, inner: string) => ({
      guided_grammar: `root ::= ${"(".repeat(depth)}${inner}${")".repeat(depth)}`,
    });
    for (let i = 0; i < 4; i++) {
      // Uses up the compiler's stack.
      await expectBounded(groups(5000, `"${i}"`), 400);
      expect(await ask(groups(60, `"yes ${i}"`))).toMatchObject({ status: 200 });
      // Each of these leaks some of it.
      for (const wrong of ["a", "b", "c"])
        await expectBounded(groups(400, `"${wrong}${i}" ??`), 400);
      expect(await ask(groups(60, `"no ${i}"`))).toMatchObject({ status: 200 });
    }
  }, 20_000);
});

test("choices of any number and length are compiled or rejected", async () => {
  const choices: [status: 200 | 400, list: unknown[]][] = [
    [200, many(1024, (i) => `choice number ${i}`)],
    [200, many(400, (i) => `${"a".repeat(i)}b`)],
    [400, many(1024, (i) => "a".repeat(i + 1))],
    [400, many(100_000, (i) => `${i}`)],
    [400, ["a".repeat(MOST)]],
    [400, many(100, () => ({ [SECRET]: 1 }))],
  ];
  for (const [status, guided_choice] of choices) {
    expect(await askAside({ guided_choice })).toMatchObject({ status });
  }
}, 30_000);

test("tools of any number and length are compiled or rejected", async () => {
  const functions = (count: number, fields: object) =>
    many(count, (i) => ({ type: "function", function: { name: `f${i}`, ...fields } }));
  for (const tools of [
    functions(100, { description: "x".repeat(MOST / 100 - 100) }),
    functions(100, { parameters: { x: many(1000, () => "a") } }),
    functions(100, { parameters: { x: many(9000, () => 1) } }),
    functions(1, { strict: true, parameters: nested(100, (items) => ({ items }), {}) }),
    functions(100_000, {}),
  ]) {
    expect(await askAside({ tools })).toMatchObject({ status: 400 });
  }
}, 30_000);

test("a compilation that times out is aborted, and the streams of other clients go on", async () => {
  await using own = await startTestServer({ grammarLimits: { compileMs: 3000 } });
  const leaving = new AbortController();
  const { signal } = leaving;
  const body = { prompt: SECRET, max_tokens: 3900, ignore_eos: true, stream: true };
  const stream = await own.post("/v1/completions", body, { signal });
  let heard = 0;
  const listening = (async () => {
    for await (const _ of stream.body!) heard += 1;
  })().catch(() => {});
  const grammar = 'root ::= (("a"{1,200}){1,200}){1,200}';
  let isCompiling = true;
  const pending = expectBounded({ guided_grammar: grammar }, 400, own).finally(() => {
    isCompiling = false;
  });
  await Bun.sleep(500);
  const before = heard;
  while (isCompiling && heard < before + 10) await Bun.sleep(10);
  expect(isCompiling).toBe(true);
  await pending;
  leaving.abort();
  await listening;
}, 60_000);

test("hundreds of schemas are all enforced, and their memory is freed", async () => {
  const from = performance.now();
  let next = 0;
  // As many as there is time for, but enough of them on a busy machine too.
  const goesOn = () => next < 320 || performance.now() - from < 3000;
  const askOn = async (count: number) => {
    while (next < count && goesOn()) {
      const i = next++;
      const schema = {
        type: "object",
        properties: { [`k${i}`]: { const: i } },
        required: [`k${i}`],
      };
      const { text } = await ask({ ...schemaField(schema), max_tokens: 40 });
      expect(JSON.parse(text)).toEqual({ [`k${i}`]: i });
    }
  };
  const rss = () => {
    Bun.gc(true);
    return process.memoryUsage().rss;
  };
  await askOn(100);
  const before = rss();
  await Promise.all(many(8, () => askOn(2000)));
  expect(next).toBeGreaterThan(300);
  expect(rss() - before).toBeLessThan(150 * 2 ** 20);
}, 60_000);

test("an answer that no token can continue ends with an error that says so", async () => {
  // No token of its vocabulary has the byte 4.
  await using real = await startTestServer({ model: defaultModelPath() });
  const expected = { param: null, code: "grammar_dead_end" };
  for (const constraint of [{ guided_regex: "yes\\x04" }, { guided_choice: ["yes\x04"] }]) {
    const body = { ...common, ...constraint };
    await expectRefusal(await real.post(path, body), { status: 400, ...expected });
    const sent = await events(await real.post(path, { ...body, stream: true }));
    expectError(sent.at(-2), expected);
    expect(sent.at(-1)).toBe("[DONE]");
  }
  await real.settled();
}, 60_000);

test("grammars whose clients have left are not compiled, and other keys do not wait for the rest", async () => {
  const keys = ["attacker", "other"].map((name) => keyEntry(name, `key-of-${name}`));
  const keyed = await startTestServer({ keys: { keys } });
  const prepare = spyOn(GrammarThread.prototype, "prepare");
  const post = (name: string, guided_grammar: string, signal?: AbortSignal) =>
    keyed.post(
      path,
      { ...common, guided_grammar },
      { headers: { authorization: `Bearer key-of-${name}` }, ...(signal && { signal }) },
    );
  /** Takes longer to compile than any limit. */
  const endless = (i: number) => `root ::= (("a"{1,200} "${i}"){1,200}){1,200}`;
  try {
    expect((await post("other", 'root ::= "warm"')).status).toBe(200);
    const leaving = new AbortController();
    const left = many(30, (i) => post("attacker", endless(i), leaving.signal).catch(() => {}));
    while ((await keyed.metric("mlx_serve_http_requests_admitted")) < 30) await Bun.sleep(10);
    expect((await post("other", 'root ::= "while they wait"')).status).toBe(200);
    leaving.abort();
    await Promise.all(left);
    expect((await post("attacker", 'root ::= "when they have left"')).status).toBe(200);
    // The first one was being compiled when its client left.
    const begun = prepare.mock.calls.filter(([{ format }]) => format.includes("200"));
    expect(begun.length).toBeLessThan(5);
    await keyed.settled();
  } finally {
    prepare.mockRestore();
    await keyed.stop();
  }
}, 60_000);
