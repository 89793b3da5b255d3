import { expect, test } from "bun:test";
import type { Grammar, Vocabulary } from "../../src/grammar/grammar.ts";
import { type GrammarClient, TrialQueue, type TrialThread } from "../../src/grammar/trial-queue.ts";

const vocabulary: Vocabulary = { path: "model", size: 320, stopTokens: [], markers: [] };
const grammarOf = (format: string): Grammar => ({ vocabulary, format, strict: [] });

/** Compiles when it is told to. */
class StandIn implements TrialThread {
  readonly compiled: string[] = [];
  readonly loaded: Vocabulary[] = [];
  abandoned = 0;
  #running: PromiseWithResolvers<void> | undefined;

  async compile({ format }: Grammar, abandoned: AbortSignal, onBegun: () => void): Promise<void> {
    this.compiled.push(format);
    this.#running = Promise.withResolvers();
    const running = this.#running;
    abandoned.addEventListener("abort", () => {
      this.abandoned += 1;
      running.reject(new Error("abandoned"));
    });
    onBegun();
    await running.promise;
  }

  load(of: Vocabulary): void {
    this.loaded.push(of);
  }

  get current(): string | undefined {
    return this.#running && this.compiled.at(-1);
  }

  async end(error?: Error): Promise<void> {
    const running = this.#running!;
    this.#running = undefined;
    if (error) running.reject(error);
    else running.resolve();
    await settled();
  }
}

const settled = () => new Promise((resolve) => setTimeout(resolve));

function setUp(count: number, most = 64) {
  const threads = Array.from({ length: count }, () => new StandIn());
  const queue = new TrialQueue(threads, most);
  const results: Record<string, string> = {};
  /** Returns how the client leaves. */
  const ask = (format: string, key: string, level = 1) => {
    const leaving = new AbortController();
    const client: GrammarClient = { key, level, signal: leaving.signal };
    const name = `${key} ${format}`;
    queue.compile(format, grammarOf(format), client).then(
      () => {
        results[name] = "compiled";
      },
      (error: Error) => {
        results[name] = error.message;
      },
    );
    return () => leaving.abort(new Error("gone"));
  };
  return { threads, queue, ask, results };
}

/** Ends one compile after another, and returns what was compiled in which order. */
async function drained([thread]: StandIn[]): Promise<string[]> {
  while (thread!.current) await thread!.end();
  return thread!.compiled;
}

test("keys take turns, each in its own order of arrival", async () => {
  const { threads, ask } = setUp(1);
  for (const format of ["a1", "a2", "a3", "a4"]) ask(format, "a");
  for (const format of ["b1", "b2"]) ask(format, "b");
  ask("c1", "c");
  expect(await drained(threads)).toEqual(["a1", "b1", "c1", "a2", "b2", "a3", "a4"]);
});

test("a key that has waited the longest since its last turn is next, and a new one before all", async () => {
  const { threads, ask } = setUp(1);
  for (const format of ["a1", "a2", "a3"]) ask(format, "a");
  for (const format of ["b1", "b2", "b3"]) ask(format, "b");
  await threads[0]!.end();
  await threads[0]!.end();
  expect(threads[0]!.current).toBe("a2");
  ask("c1", "c");
  expect(await drained(threads)).toEqual(["a1", "b1", "a2", "c1", "b2", "a3", "b3"]);
});

test("a higher level goes first", async () => {
  const { threads, ask } = setUp(1);
  ask("first", "a", 0);
  for (const [format, key, level] of [
    ["low", "b", 0],
    ["normal", "c", 1],
    ["high", "d", 2],
  ] as const) {
    ask(format, key, level);
  }
  expect(await drained(threads)).toEqual(["first", "high", "normal", "low"]);
});

test("a key has one trial at a time, so another key's grammar does not wait for it", async () => {
  const { threads, ask } = setUp(2);
  for (let i = 0; i < 30; i++) ask(`a${i}`, "a", 2);
  expect(threads.map(({ current }) => current)).toEqual(["a0", undefined]);
  ask("b", "b", 0);
  expect(threads.map(({ current }) => current)).toEqual(["a0", "b"]);
});

test("the idle thread loads the vocabulary when a compile has begun", () => {
  const { threads, ask } = setUp(2);
  ask("a", "a");
  expect(threads.map(({ loaded }) => loaded)).toEqual([[], [vocabulary]]);
});

test("a grammar whose client has left while it waited is not compiled", async () => {
  const { threads, ask, results } = setUp(1);
  const leave = Array.from({ length: 30 }, (_, i) => ask(`a${i}`, "a"));
  for (const each of leave) each();
  await settled();
  expect(results).toMatchObject({ "a a0": "gone", "a a29": "gone" });
  ask("b", "b");
  await settled();
  expect(threads[0]!.compiled).toEqual(["a0", "b"]);
});

test("a grammar that was left has lost its place", async () => {
  const { threads, ask } = setUp(1);
  ask("a1", "a");
  ask("a2", "a")();
  ask("a3", "a");
  ask("a2", "a");
  expect(await drained(threads)).toEqual(["a1", "a3", "a2"]);
});

test("a compile that nobody waits for is ended when the thread is needed, and not before", async () => {
  const { threads, ask, results } = setUp(1);
  ask("a", "a")();
  expect(threads[0]).toMatchObject({ current: "a", abandoned: 0 });
  ask("b", "b");
  await settled();
  expect(threads[0]).toMatchObject({ current: "b", abandoned: 1 });
  await drained(threads);
  expect(results).toEqual({ "a a": "gone", "b b": "compiled" });
});

test("a compile whose client leaves is ended for one that waits already", async () => {
  const { threads, ask } = setUp(1);
  const leave = ask("a", "a");
  ask("b", "b");
  leave();
  while (threads[0]!.current !== "b") await settled();
  expect(threads[0]!.abandoned).toBe(1);
});

test("a compile that nobody waits for is ended when its own key needs its turn", async () => {
  const { threads, ask, results } = setUp(2);
  ask("a", "a")();
  ask("b", "b");
  expect(threads.map(({ abandoned }) => abandoned)).toEqual([0, 0]);
  ask("a again", "a");
  await settled();
  expect(threads.map(({ abandoned }) => abandoned)).toEqual([1, 0]);
  expect(threads.map(({ current }) => current)).toEqual(["a again", "b"]);
  expect(results).toEqual({ "a a": "gone" });
});

test("clients of the same grammar share one compile, which goes on while one of them is left", async () => {
  const { threads, ask, results } = setUp(1);
  ask("busy", "x");
  const leave = ask("same", "a");
  ask("same", "b");
  leave();
  await threads[0]!.end();
  ask("same", "c")();
  expect(await drained(threads)).toEqual(["busy", "same"]);
  const compiled = { "x busy": "compiled", "b same": "compiled" };
  expect(results).toEqual({ ...compiled, "a same": "gone", "c same": "gone" });
});

test("a client that joins an abandoned compile gets its result", async () => {
  const { threads, ask, results } = setUp(1);
  ask("same", "a")();
  ask("same", "b");
  await drained(threads);
  expect(threads[0]!.compiled).toEqual(["same"]);
  expect(results).toEqual({ "a same": "gone", "b same": "compiled" });
});

test("a grammar that fails does so for all its clients, and the next one is compiled", async () => {
  const { threads, ask, results } = setUp(1);
  ask("wrong", "a");
  ask("wrong", "b");
  ask("right", "a");
  await threads[0]!.end(new Error("it is wrong"));
  await drained(threads);
  expect(results).toEqual({
    "a wrong": "it is wrong",
    "b wrong": "it is wrong",
    "a right": "compiled",
  });
});

test("a key that has too many grammars is refused, and no other key", async () => {
  const { threads, ask, results } = setUp(1, 2);
  ask("a1", "a");
  const leave = ask("a2", "a");
  ask("a3", "a");
  ask("b1", "b");
  await settled();
  expect(results).toEqual({ "a a3": "the queue of grammars to compile is full" });
  leave();
  ask("a4", "a");
  await drained(threads);
  expect(results).toMatchObject({ "a a4": "compiled", "b b1": "compiled" });
});
