// An engine that is loading a model, slowly: what it answers meanwhile, and how it is stopped.
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, mock, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { findLibrary } from "../../ffi/native.ts";
import { EngineClient, LoadCancelledError } from "../../src/engine/client.ts";
import type { EngineActivity } from "../../src/engine/protocol.ts";
import type { Grammar } from "../../src/grammar/grammar.ts";
import { Grammars } from "../../src/grammar/grammars.ts";
import { grammarEntry, workerEntry } from "../../src/worker-entry.ts";
import { writeChatModel } from "../support/chat-model.ts";

const folder = mkdtempSync(join(tmpdir(), "during-load-"));
const [quick, slow, stuck] = ["quick", "slow", "stuck"].map((name) => join(folder, name));
const original = workerEntry;
const useWorker = (entry: URL) =>
  mock.module("../../src/worker-entry.ts", () => ({ workerEntry: entry, grammarEntry }));

let engine: EngineClient;
let grammars: Grammars;
beforeAll(() => {
  for (const path of [quick, slow, stuck]) writeChatModel(path!);
  useWorker(new URL("../support/slow-load-worker.ts", import.meta.url));
});
beforeEach(async () => {
  engine = await EngineClient.start({ library: findLibrary(), device: "cpu", trace: false });
  await engine.load("quick", quick!, { blocks: 8 });
  grammars = new Grammars();
});
afterEach(async () => {
  await Promise.all([engine.stop(), grammars.stop()]);
});
afterAll(() => {
  useWorker(original);
  rmSync(folder, { recursive: true });
});

const END = 258;
const grammar: Grammar = {
  vocabulary: { path: quick!, size: 320, stopTokens: [END], markers: [] },
  format: JSON.stringify({ type: "regex", pattern: "[ab]{4}" }),
  strict: [],
};

/** The text of a constrained answer. */
async function constrained(): Promise<string> {
  const events = engine.submit("quick", {
    prompt: Uint32Array.of(1, 2),
    maxTokens: 8,
    sampling: { temperature: 0 },
    stopTokens: [END],
    grammar,
  });
  const bytes: number[] = [];
  for await (const { token } of events) if (token !== undefined && token < 256) bytes.push(token);
  return Buffer.from(bytes).toString();
}

/** The same of a grammar that is prepared first, as each request over HTTP does. */
async function prepared(): Promise<string> {
  await grammars.prepare(grammar, engine, { key: "a", level: 1 });
  return await constrained();
}

/** Does some work, all of it during a load. */
async function whileLoading<T>(work: () => Promise<T>): Promise<T> {
  let isLoading = true;
  const loading = engine.load("slow", slow!, { blocks: 8 }).finally(() => {
    isLoading = false;
  });
  // It has begun: the Worker answers between two reads.
  await engine.stats();
  const result = await work();
  expect(isLoading).toBe(true);
  engine.refuseLoads();
  await loading.catch(() => {});
  return result;
}

describe("a constrained request", () => {
  test("is answered while another model loads", async () => {
    expect(await whileLoading(prepared)).toMatch(/^[ab]{4}$/);
  });

  test("is answered while another model loads, after the grammar thread has ended", async () => {
    await grammars.prepare(grammar, engine, { key: "a", level: 1 });
    expect(await constrained()).toMatch(/^[ab]{4}$/);
    await grammars.stop();
    expect(await whileLoading(prepared)).toMatch(/^[ab]{4}$/);
  });

  test("is answered after its grammar was prepared and then the grammar thread ended", async () => {
    await grammars.prepare(grammar, engine, { key: "a", level: 1 });
    expect(await constrained()).toMatch(/^[ab]{4}$/);
    await grammars.stop();
    expect(await constrained()).toMatch(/^[ab]{4}$/);
  });

  test("is answered after its grammar was prepared and then the Worker was restarted", async () => {
    await grammars.prepare(grammar, engine, { key: "a", level: 1 });
    expect(await constrained()).toMatch(/^[ab]{4}$/);
    await engine.kill();
    expect(await constrained()).toMatch(/^[ab]{4}$/);
  });
});

describe("a load", () => {
  test("that is cancelled leaves no memory behind, and later ones are refused", async () => {
    const [before] = await engine.stats();
    const loading = engine.load("slow", slow!, { blocks: 8 }).catch((error) => error);
    await engine.stats();
    engine.refuseLoads();
    expect(await loading).toBeInstanceOf(LoadCancelledError);
    const later = engine.load("other", quick!, { blocks: 8 }).catch((error) => error);
    expect(await later).toBeInstanceOf(LoadCancelledError);
    const [after, ...others] = await engine.stats();
    expect(others).toEqual([]);
    expect(after!.liveArrays).toBe(before!.liveArrays);
    expect(after!.activeBytes).toBe(before!.activeBytes);
  });

  test.each([
    ["slow", slow!],
    ["stuck", stuck!],
  ])("that is %s is not waited for when the engine stops", async (name, path) => {
    const loading = engine.load(name, path, { blocks: 8 }).catch((error) => error);
    await Bun.sleep(50);
    const startMs = performance.now();
    await engine.stop();
    expect(performance.now() - startMs).toBeLessThan(2000);
    expect(await loading).toBeInstanceOf(LoadCancelledError);
    expect(engine.alive).toBe(false);
  });
});

test("the kernels that a first step compiles are told, until it has run", async () => {
  useWorker(new URL("../support/compile-worker.ts", import.meta.url));
  const told: (EngineActivity | undefined)[] = [];
  const compiling = await EngineClient.start(
    { library: findLibrary(), device: "cpu", trace: false },
    { onActivity: (activity) => told.push(activity) },
  );
  await compiling.load("quick", quick!, { blocks: 8 });
  // The load's own progress ends with it.
  expect(told[0]).toMatchObject({ kind: "load", model: "quick" });
  expect([told.at(-1), compiling.activity]).toEqual([undefined, undefined]);
  told.length = 0;
  const request = { prompt: Uint32Array.of(1, 2), maxTokens: 2, sampling: { temperature: 0 } };
  const events = compiling.submit("quick", request)[Symbol.asyncIterator]();
  await events.next();
  expect(told).toEqual([
    { kind: "compile", kernel: "norm", done: 1 },
    { kind: "compile", kernel: "decode", done: 2 },
    undefined,
  ]);
  await events.return?.();
  await compiling.stop();
  useWorker(new URL("../support/slow-load-worker.ts", import.meta.url));
});
