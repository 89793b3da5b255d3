// What the Worker does with messages that arrive while a model loads. The load is a function of the test's.
import { expect, test } from "bun:test";
import { MessageChannel } from "node:worker_threads";
import {
  defaultEngineOptions,
  type EngineRequest,
  type FromWorker,
  type ToWorker,
} from "../../src/engine/protocol.ts";
import { type Grammar, makeStatus } from "../../src/grammar/grammar.ts";
import { KvCache } from "../../src/kv/kv-cache.ts";
import type { Launched } from "../../src/model/run/step.ts";
import { loop, stepAll } from "../../src/worker/loop.ts";
import { MessageHandler } from "../../src/worker/message-handler.ts";
import { ModelEngine } from "../../src/worker/model-engine.ts";
import type { Models } from "../../src/worker/models.ts";

const sampling = { temperature: 0 };
const request: EngineRequest = { prompt: Uint32Array.of(1, 2, 3), maxTokens: 4, sampling };
const vocabulary = { path: "", size: 64, stopTokens: [], markers: [] };
const grammar: Grammar = { vocabulary, format: "", strict: [] };
const load = (id: number, model: string): ToWorker => {
  return { kind: "load", id, model, path: "", options: defaultEngineOptions };
};
const submit = (id: number, model: string, of = request): ToWorker => {
  return { kind: "submit", id, model, request: of };
};
const link = () => ({ port: new MessageChannel().port1, status: makeStatus() });

type OnRead = () => void;

/** `read` is what a load does: it calls back between two reads. */
function setUp(read: (model: string, onRead: OnRead) => void = () => {}, depth: 1 | 2 = 1) {
  const engines = new Map<string, ModelEngine>();
  const models = {
    matchers: new Map() as Models["matchers"],
    get busy() {
      return engines.values().some(({ scheduler }) => !scheduler.idle);
    },
    get: (name: string) => engines.get(name),
    load(name: string, _path: string, _options: unknown, { onRead }: { onRead: OnRead }) {
      read(name, onRead);
      engines.set(name, makeModel(name, depth, models.matchers, reply));
      return name;
    },
    unload(name: string) {
      if (engines.get(name)?.scheduler.idle === false) throw new Error(`${name} is busy`);
      engines.delete(name);
    },
    stats: () => [],
    [Symbol.iterator]: () => engines.values(),
  };
  const inbox: ToWorker[] = [];
  const replies: FromWorker[] = [];
  const reply = (message: FromWorker) => void replies.push(message);
  const handler = new MessageHandler({
    models: models as unknown as Models,
    receive: () => inbox.shift(),
    reply,
    inspect: () => ({}) as never,
  });
  /** Until there is nothing left to do. */
  const run = (...messages: ToWorker[]) => {
    inbox.push(...messages);
    for (let message = handler.next(0); message; message = handler.next(0)) handler.handle(message);
    while (models.busy) stepAll(models);
  };
  const failures = () => replies.flatMap((each) => (each.kind === "failed" ? [each] : []));
  const answered = () => replies.flatMap((each) => (each.kind === "answer" ? [each.id] : []));
  const ends = () =>
    replies.flatMap((each) =>
      each.kind === "step" ? each.events.others.filter(({ event }) => event.finished) : [],
    );
  const finished = () => ends().map(({ id }) => id);
  const reasons = () => ends().map(({ event }) => event.finished);
  const replied = { replies, failures, answered, finished, reasons };
  return { models, handler, inbox, run, engines, ...replied };
}

/** Draws token 7, always. */
function makeModel(
  name: string,
  depth: 1 | 2,
  matchers: Models["matchers"],
  reply: (message: FromWorker) => void,
): ModelEngine {
  const launch = ({ samples }: { samples: readonly unknown[] }): Launched => ({
    draw: () => [],
    read: () => ({ sampled: samples.map(() => ({ token: 7 })), scored: [], sums: [] }),
  });
  return new ModelEngine({
    name,
    cache: new KvCache({ groups: [{ blocks: 40 }] }),
    runner: { forwards: 0, depth, launch },
    vocabulary: 64,
    maxLength: 500,
    lookback: 1000,
    tokenBudget: 512,
    stepMs: 250,
    options: { ...defaultEngineOptions, maxBatch: 8 },
    matchers: (lane) => matchers.get(lane),
    onStep: (result) => reply({ kind: "step", ...result }),
  });
}

test("a constrained request for a loaded model finds the link that was sent ahead of it", () => {
  const of = { ...request, grammar, grammarLane: 2 };
  const { run, inbox, failures, models } = setUp((model, onRead) => {
    if (model !== "slow") return;
    inbox.push({ kind: "matchers", lane: 2, link: link() }, submit(3, "a", of), {
      kind: "abort",
      id: 3,
    });
    onRead();
    expect([...models.matchers.keys()]).toEqual([2]);
  });
  run(load(1, "a"), load(2, "slow"));
  expect(failures()).toEqual([]);
});

test("a constrained request without a grammar thread is refused, and not answered unconstrained", () => {
  const { run, failures } = setUp();
  run(load(1, "a"), submit(2, "a", { ...request, grammar }));
  expect(failures()).toEqual([{ kind: "failed", id: 2, message: "no grammar thread is attached" }]);
});

test("messages about a model keep their order while another one loads", () => {
  const { run, inbox, failures, finished, answered, engines } = setUp((model, onRead) => {
    if (model !== "slow") return;
    inbox.push({ kind: "unload", id: 3, model: "a" }, load(4, "a"), submit(5, "a"));
    inbox.push(submit(6, "slow"), submit(7, "b"));
    onRead();
    // What has nothing to wait for is not held up.
    expect([...engines.keys()]).toEqual(["b"]);
    expect(engines.get("b")!.has(7)).toBe(true);
  });
  run(load(1, "a"), load(9, "b"), load(2, "slow"));
  expect(failures()).toEqual([]);
  expect(answered()).toEqual([1, 9, 3, 2, 4]);
  expect(finished().toSorted()).toEqual([5, 6, 7]);
});

test("an abort waits behind the request that it ends", () => {
  const { run, inbox, finished, reasons, replies } = setUp((model, onRead) => {
    if (model !== "slow") return;
    inbox.push(submit(3, "slow"), { kind: "abort", id: 3 }, submit(4, "slow"));
    onRead();
    expect(replies.some(({ kind }) => kind === "step")).toBe(false);
  });
  run(load(1, "slow"));
  expect(finished()).toEqual([3, 4]);
  expect(reasons()).toEqual(["abort", "length"]);
});

test("a load under way ends where loads are refused, and so do those behind it", () => {
  let reads = 0;
  const { run, inbox, failures, finished } = setUp((model, onRead) => {
    if (model !== "slow") return;
    inbox.push(load(3, "other"), submit(4, "a"), { kind: "refuseLoads" });
    for (; reads < 5; reads++) onRead();
  });
  run(load(1, "a"), load(2, "slow"));
  expect([reads, failures().map(({ id }) => id)]).toEqual([0, [2, 3]]);
  // The models that are loaded go on.
  expect(finished()).toEqual([4]);
});

test("a stop that arrives during a load ends the loop before anything else is handled", () => {
  const { handler, models, inbox, failures, answered } = setUp((model, onRead) => {
    if (model !== "slow") return;
    inbox.push(load(3, "other"), { kind: "stop" });
    onRead();
  });
  inbox.push(load(1, "a"), load(2, "slow"));
  loop(models as unknown as Models, handler);
  expect([answered(), failures().map(({ id }) => id)]).toEqual([[1], [2]]);
});

test("steps in flight for aborted requests land before their model is unloaded", () => {
  const { run, handler, models, failures, answered } = setUp(undefined, 2);
  run(load(1, "a"));
  handler.handle(submit(2, "a"));
  models.get("a")!.step();
  handler.handle({ kind: "abort", id: 2 });
  expect(models.busy).toBe(true);
  handler.handle({ kind: "unload", id: 3, model: "a" });
  expect([failures(), answered()]).toEqual([[], [1, 3]]);
});

test("a model with requests is not unloaded", () => {
  const { run, handler, failures, finished } = setUp();
  run(load(1, "a"));
  handler.handle(submit(2, "a"));
  handler.handle({ kind: "unload", id: 3, model: "a" });
  expect(failures()).toEqual([{ kind: "failed", id: 3, message: "a is busy" }]);
  run();
  expect(finished()).toEqual([2]);
});
