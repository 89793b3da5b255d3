import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { MessageChannel } from "node:worker_threads";
import { Compiler } from "../../src/grammar/compiler.ts";
import { GONE, type Grammar, makeStatus, type Vocabulary } from "../../src/grammar/grammar.ts";
import { GrammarError } from "../../src/grammar/grammar-error.ts";
import { GrammarThread } from "../../src/grammar/grammar-thread.ts";
import {
  Grammars,
  type MatcherSource,
  type MatcherUser,
  type ServingThread,
} from "../../src/grammar/grammars.ts";
import { type Matcher, Matchers } from "../../src/grammar/matchers.ts";
import type { GrammarClient } from "../../src/grammar/trial-queue.ts";
import { writeChatModel } from "../support/chat-model.ts";
import { makeRandom } from "../support/random.ts";

const folder = mkdtempSync(join(tmpdir(), "mlx-serve-grammar-"));
writeChatModel(folder);
const [END, MARKER] = [258, 257];
const vocabulary: Vocabulary = { path: folder, size: 320, stopTokens: [END], markers: [] };
const all: Grammars[] = [];
afterAll(async () => {
  await Promise.all(all.map((grammars) => grammars.stop()));
  rmSync(folder, { recursive: true });
});

const regex = (pattern: string): Grammar => {
  return { vocabulary, format: JSON.stringify({ type: "regex", pattern }), strict: [] };
};

const ebnf = (text: string): Grammar => ({
  vocabulary,
  format: JSON.stringify({ type: "grammar", grammar: text }),
  strict: [],
});

/** Takes longer to compile than any limit. */
const endless = ebnf('root ::= ((([a-z]{1,300} "x"){1,300} "y"){1,300} "z"){1,300}');

const client: GrammarClient = { key: "a", level: 1 };

/** What the engine is to the grammars, on this thread. */
class Engine implements MatcherUser {
  links = 0;
  #source: MatcherSource | undefined;
  readonly #threads = new Map<number, ServingThread>();
  readonly #matchers = new Map<number, Matchers>();

  attach(source: MatcherSource): void {
    this.#source = source;
  }

  open(grammar: Grammar, lane = 0): Matcher {
    const thread = this.#source!.servingThread(lane);
    if (thread !== this.#threads.get(lane)) {
      this.#threads.set(lane, thread);
      this.#matchers.set(lane, new Matchers(thread.connect()));
      this.links += 1;
    }
    return this.#matchers.get(lane)!.open(grammar);
  }
}

function makeGrammars(limits?: ConstructorParameters<typeof Grammars>[0]) {
  const grammars = new Grammars(limits);
  all.push(grammars);
  const engine = new Engine();
  const open = async (grammar: Grammar, of = client) => {
    return engine.open(grammar, await grammars.prepare(grammar, engine, of));
  };
  return { grammars, engine, open };
}

const tokensOf = (words: Uint32Array) =>
  Array.from({ length: 320 }, (_, id) => id).filter((id) => (words[id >> 5]! >>> (id & 31)) & 1);

/** Samples from the tokens that it allows, to the end, and returns the text. */
function walk(matcher: Matcher, seed: number): string {
  const random = makeRandom(seed);
  const bytes: number[] = [];
  for (;;) {
    const tokens = tokensOf(matcher.mask(Infinity)!);
    const token = tokens[random.below(tokens.length)]!;
    if (token === undefined) throw new Error("nothing is allowed");
    if (token === END) return Buffer.from(bytes).toString();
    bytes.push(token);
    matcher.accept(token);
  }
}

test("what a matcher allows is what its grammar does", async () => {
  const { open } = makeGrammars();
  const pattern = "(ab|cd){2,4}e?";
  for (let seed = 0; seed < 20; seed++) {
    const matcher = await open(regex(pattern));
    expect(walk(matcher, seed)).toMatch(new RegExp(`^${pattern}$`));
    matcher.close();
  }
});

test("tokens that end an answer are allowed at its end only, other control tokens never", async () => {
  const { open } = makeGrammars();
  const matcher = await open(regex("a[^b]?"));
  expect(tokensOf(matcher.mask(Infinity)!)).toEqual(["a".charCodeAt(0)]);
  matcher.accept("a".charCodeAt(0));
  const allowed = tokensOf(matcher.mask(Infinity)!);
  expect(allowed).toContain(END);
  expect(allowed).not.toContain(MARKER);
  const shown = { ...vocabulary, markers: ["<|im_start|>"] };
  const marked = await open({ ...regex("<\\|im_start\\|>"), vocabulary: shown });
  expect(tokensOf(marked.mask(Infinity)!)).toEqual(["<".charCodeAt(0), MARKER]);
});

test("answers are followed side by side, each by its own grammar", async () => {
  const { open, engine } = makeGrammars();
  const patterns = Array.from({ length: 8 }, (_, i) => `${i}[a-f]{${i + 1}}`);
  const matchers = await Promise.all(patterns.map((pattern) => open(regex(pattern))));
  const texts = matchers.map((matcher, i) => walk(matcher, i));
  texts.forEach((text, i) => {
    expect(text).toMatch(new RegExp(`^${patterns[i]}$`));
  });
  expect(engine.links).toBe(1);
});

test("a document is written in one line", async () => {
  const { open } = makeGrammars();
  const json_schema = { type: "object", properties: { a: { const: 1 } }, required: ["a"] };
  const format = JSON.stringify({ type: "json_schema", json_schema });
  expect(walk(await open({ vocabulary, format, strict: [] }), 1)).toBe('{"a": 1}');
});

test("an invalid grammar is refused with the reason, and the next one is compiled", async () => {
  const { open } = makeGrammars();
  for (let i = 0; i < 20; i++) {
    const error = await open(ebnf(`root ::= ("${i}"`)).catch((fault: unknown) => fault);
    expect(error).toBeInstanceOf(GrammarError);
    expect((error as Error).message).toMatch(/^EBNF parser error at line 1, column/);
  }
  expect(walk(await open(regex("yes")), 1)).toBe("yes");
});

test("a compile that takes too long is ended, and the grammars behind it are compiled", async () => {
  const { open } = makeGrammars({ compileMs: 300 });
  const slow = open(endless).catch((fault: unknown) => fault);
  const quick = open(regex("yes"));
  expect(await slow).toMatchObject({
    name: "GrammarError",
    message: "it takes too long to compile",
  });
  expect(walk(await quick, 1)).toBe("yes");
});

test("too many grammars, and too long ones, are refused at once", async () => {
  const { grammars, engine } = makeGrammars({ waiting: 2, characters: 100 });
  const ask = (pattern: string) =>
    grammars.prepare(regex(pattern), engine, client).catch((fault: Error) => fault.name);
  expect(await ask("a".repeat(101))).toBe("GrammarError");
  const asked = [ask("a"), ask("b"), ask("c"), ask("a")];
  expect(await Promise.all(asked)).toEqual([0, 0, "GrammarsBusyError", 0]);
});

test("however many grammars are compiled, the cache stays within its bytes", async () => {
  const compiler = new Compiler(2 ** 20);
  for (let i = 0; i < 2000; i++) {
    await compiler.compile(regex(`a${i}`));
    expect(compiler.bytes).toBeLessThanOrEqual(2 ** 20);
  }
  expect(compiler.has(regex("a1999"))).toBe(true);
  expect(compiler.has(regex("a0"))).toBe(false);
});

test("where the thread has ended, no token is allowed and nothing waits; then there is another", async () => {
  const { grammars, engine, open } = makeGrammars();
  const matcher = await open(regex("[ab]+"));
  expect(tokensOf(matcher.mask(Infinity)!)).toHaveLength(2);
  await grammars.stop();
  matcher.accept(97);
  const start = performance.now();
  expect(tokensOf(matcher.mask(Infinity)!)).toEqual([]);
  expect(performance.now() - start).toBeLessThan(5000);
  expect(walk(await open(regex("yes")), 1)).toBe("yes");
  expect(engine.links).toBe(2);
});

test("a grammar that was prepared before the thread ended is compiled by the next one", async () => {
  const { grammars, engine, open } = makeGrammars();
  await open(regex("[ab]"));
  await grammars.prepare(regex("[cd]"), engine, client);
  await grammars.stop();
  expect(["c", "d"]).toContain(walk(engine.open(regex("[cd]")), 1));
  expect(engine.links).toBe(2);
});

test("a thread that ends while it compiles is replaced, and the grammar is compiled there", async () => {
  const { grammars, engine, open } = makeGrammars();
  await open(regex("[ab]"));
  await grammars.prepare(regex("[cd]"), engine, client);
  const preparing = grammars.prepare(regex("[cd]"), engine, client);
  // It passed its trial before, so only the serving thread compiles it now.
  await grammars.stop();
  await preparing;
  expect(["c", "d"]).toContain(walk(engine.open(regex("[cd]")), 1));
});

test("a matcher whose thread has ended is not waited for", async () => {
  const { grammars, open } = makeGrammars();
  const matcher = await open(regex("[ab]+"));
  await grammars.stop();
  matcher.accept(97);
  expect(matcher.isLate).toBe(false);
  const status = makeStatus();
  const silent = new Matchers({ port: new MessageChannel().port1, status }).open(regex("a"));
  expect(silent.isLate).toBe(true);
  Atomics.store(new Int32Array(status), GONE, 1);
  expect(silent.isLate).toBe(false);
});

test("keys have threads of their own: one that compiles delays no other key's masks", async () => {
  const { engine, open } = makeGrammars();
  await open(regex("[ab]"), { key: "a", level: 1 });
  const stuck = engine.open(endless, 0);
  expect(walk(await open(regex("yes"), { key: "b", level: 1 }), 1)).toBe("yes");
  expect(stuck.isLate).toBe(true);
  expect(engine.links).toBe(2);
});

test("a serving thread that takes too long at one thing is ended, and there is another", async () => {
  const { engine, open } = makeGrammars({ serveMs: 2000 });
  await open(regex("[ab]"));
  const stuck = engine.open(endless);
  expect(walk(await open(regex("yes")), 1)).toBe("yes");
  expect(stuck.isLate).toBe(false);
  expect(tokensOf(stuck.mask(Infinity)!)).toEqual([]);
  expect(engine.links).toBe(2);
});

test("grammars that are withdrawn while the thread is busy are not compiled", async () => {
  const thread = new GrammarThread({ maxBytes: 0 });
  const leaving = new AbortController();
  const busy = thread.prepare(ebnf('root ::= ([a-z]{1,60} "x"){1,60}'));
  const { signal } = leaving;
  const withdrawn = Array.from({ length: 10 }, () =>
    thread.prepare(endless, { signal }).catch((error) => error),
  );
  const next = thread.prepare(regex("yes"));
  const gone = new Error("gone");
  leaving.abort(gone);
  for (const each of withdrawn) expect(await each).toBe(gone);
  await Promise.all([busy, next]);
  await thread.end();
});
