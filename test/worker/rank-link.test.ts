// The engine Worker's side of ranks, with a main thread that this test plays.
import { deserialize, serialize } from "bun:jsc";
import { afterEach, expect, test } from "bun:test";
import { MessageChannel, receiveMessageOnPort } from "node:worker_threads";
import { send } from "../../src/engine/mailbox.ts";
import type { StepInputs } from "../../src/model/run/step.ts";
import { evenly } from "../../src/model/weights/stages.ts";
import type { FromRank, FromRankUser, ToRank, ToRankUser } from "../../src/ranks/protocol.ts";
import { RankLink } from "../../src/worker/rank-link.ts";

const ports: { close(): void }[] = [];
afterEach(() => {
  for (const each of ports.splice(0)) each.close();
});

const layout = { groups: [{ blocks: 1, window: undefined }], slots: undefined };

function setUp(stepLimitMs?: number) {
  const { port1, port2 } = new MessageChannel();
  ports.push(port1, port2);
  const arrivals = new SharedArrayBuffer(4);
  const mailbox = { port: port2, arrivals };
  const link = new RankLink({ mailbox, size: 2, localSize: 2, division: { parallel: "tensor" } });
  const load = {
    ...{ model: "tiny", path: "/tiny", dtype: "float32" as const, keepDequantized: undefined },
    ...{ layout, parallel: "tensor" as const, layers: evenly(2), warmUp: undefined },
  };
  const limit = stepLimitMs === undefined ? {} : { stepLimitMs };
  const runner = link.open({ load, fingerprint: "abc", ...limit });
  const tell = (message: ToRankUser) => send({ port: port1, arrivals }, message);
  const say = (rank: number, message: FromRank) =>
    tell({ kind: "message", rank, bytes: new Uint8Array(serialize(message)) });
  /** What the Worker has sent since. */
  const heard = (): (ToRank | FromRankUser)[] => {
    const all: (ToRank | FromRankUser)[] = [];
    for (;;) {
      const message = receiveMessageOnPort(port1)?.message as FromRankUser | undefined;
      if (!message) return all;
      if (message.kind === "message") all.push(deserialize(message.bytes.buffer as ArrayBuffer));
      else all.push(message);
    }
  };
  const form = () => {
    tell({ kind: "formed", memory: [1, 1] });
    runner.isReady();
    for (const rank of [0, 1]) say(rank, { kind: "checked", model: "tiny" });
    runner.isReady();
    for (const rank of [0, 1]) {
      say(rank, { kind: "loaded", model: "tiny", weightBytes: 10, kvBytes: 5 });
    }
  };
  return { runner, tell, say, heard, form };
}

const none = { rows: [], copies: [], samples: [], scores: [], sums: [] };
const inputs: StepInputs = { tokens: Uint32Array.of(1), ...none };

const traffic = { collectives: 3, bytes: 9, measured: 0, measuredMs: 0 };

test("a model is loaded when all ranks have the same files, and is ready when all have loaded it", () => {
  const { runner, tell, say, heard } = setUp();
  expect(runner.isReady()).toBe(false);
  expect(heard()).toEqual([]);
  tell({ kind: "formed", memory: [1, 1] });
  expect(runner.isReady()).toBe(false);
  expect(heard()).toEqual([{ kind: "check", model: "tiny", path: "/tiny", fingerprint: "abc" }]);
  say(0, { kind: "checked", model: "tiny" });
  expect(runner.isReady()).toBe(false);
  expect(heard()).toEqual([]);
  say(1, { kind: "checked", model: "tiny" });
  runner.isReady();
  expect(heard().map(({ kind }) => kind)).toEqual(["load"]);
  say(0, { kind: "loaded", model: "tiny", weightBytes: 10, kvBytes: 5 });
  expect(runner.isReady()).toBe(false);
  say(1, { kind: "loaded", model: "tiny", weightBytes: 8, kvBytes: 4 });
  expect(runner.isReady()).toBe(true);
  expect(runner.held).toEqual({ weightBytes: 18, kvBytes: 9 });
});

test("a rank with other files is named, and nothing is loaded", () => {
  const { runner, tell, say, heard } = setUp();
  tell({ kind: "formed", memory: [1, 1] });
  runner.isReady();
  say(0, { kind: "checked", model: "tiny" });
  say(1, { kind: "refused", model: "tiny", reason: "not the server's model" });
  expect(() => runner.load({})).toThrow("rank 1: not the server's model");
  expect(heard().map(({ kind }) => kind)).toEqual(["check", "refused"]);
  runner.free();
  expect(heard()[0]).toEqual({ kind: "refused", model: "tiny", rank: undefined });
});

test("a rank that refuses the model in a later group is told, until the group forms again", () => {
  const { runner, tell, say, heard, form } = setUp();
  form();
  expect(runner.isReady()).toBe(true);
  tell({ kind: "lost", reason: "rank 1 is gone" });
  expect([runner.isReady(), runner.isRefused]).toEqual([false, false]);
  tell({ kind: "formed", memory: [1, 1] });
  runner.isReady();
  heard();
  say(1, { kind: "refused", model: "tiny", reason: "not the server's model" });
  expect([runner.isReady(), runner.isRefused]).toEqual([false, true]);
  expect(runner.takeLoss()).toBe("rank 1: not the server's model");
  expect(heard()).toEqual([{ kind: "refused", model: "tiny", rank: 1 }]);
  tell({ kind: "lost", reason: "rank 1 is gone" });
  expect([runner.isReady(), runner.isRefused]).toEqual([false, false]);
  expect(heard()).toEqual([{ kind: "refused", model: "tiny", rank: undefined }]);
  form();
  expect(runner.isReady()).toBe(true);
});

test("a step goes to the ranks, and its outputs come from the first", () => {
  const { runner, say, heard, form } = setUp();
  form();
  expect(runner.isReady()).toBe(true);
  heard();
  const launched = runner.launch(inputs);
  launched.draw([{ mask: "late" }]);
  const outputs = { sampled: [{ token: 7 }], scored: [], sums: [] };
  say(0, { kind: "outputs", model: "tiny", outputs, traffic });
  expect(launched.read()).toEqual(outputs);
  expect(heard()).toEqual([
    { kind: "step", model: "tiny", inputs },
    { kind: "draw", model: "tiny", lookbacks: [{ mask: "late" }] },
    { kind: "read", model: "tiny" },
  ]);
  expect(runner.traffic).toEqual(traffic);
});

test("a step that is under way when a rank is lost throws, once more is lost, and the next group loads again", () => {
  const { runner, tell, heard, form } = setUp();
  form();
  runner.isReady();
  const launched = runner.launch(inputs);
  tell({ kind: "lost", reason: "rank 1 is gone" });
  expect(() => launched.read()).toThrow("rank 1 is gone");
  expect(runner.isReady()).toBe(false);
  expect([runner.takeLoss(), runner.takeLoss()]).toEqual(["rank 1 is gone", undefined]);
  heard();
  form();
  expect(runner.isReady()).toBe(true);
  expect(heard().map(({ kind }) => kind)).toEqual(["check", "load"]);
});

test("ranks that do not answer a step are given up", () => {
  const { runner, tell, heard, form } = setUp(10);
  form();
  runner.isReady();
  heard();
  const launched = runner.launch(inputs);
  // The main thread answers when it has been told: before the second wait.
  const { wait } = Atomics;
  let waits = 0;
  Atomics.wait = ((...args: Parameters<typeof wait>) => {
    waits += 1;
    if (waits < 2) return wait(...args);
    tell({ kind: "lost", reason: "given up" });
    return "ok";
  }) as typeof wait;
  try {
    expect(() => launched.read()).toThrow("given up");
  } finally {
    Atomics.wait = wait;
  }
  expect(heard().at(-1)).toEqual({
    kind: "giveUp",
    reason: "a step of tiny was not answered in time",
  });
});
