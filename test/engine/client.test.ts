import { beforeAll, describe, expect, test } from "bun:test";
import { backend, findLibrary } from "../../ffi/native.ts";
import {
  EngineClient,
  EngineError,
  type EngineHooks,
  type RefusedError,
} from "../../src/engine/client.ts";
import type { EngineEvent, StepReport, WorkerSetup } from "../../src/engine/protocol.ts";
import { readGauges } from "../../src/kv/blocks.ts";
import { useMlx } from "../support/mlx.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";
import { goldenOf, tinyCase, writeTinyModel } from "../support/tiny-models.ts";

const folder = temporaryFolder();
useMlx();
beforeAll(() => {
  writeTinyModel(folder, tinyCase("llama"));
});

const device = backend() === "cpu" ? "cpu" : "gpu";
const setup: WorkerSetup = { library: findLibrary(), device, trace: false };

const start = (hooks: EngineHooks = {}) => EngineClient.start(setup, hooks);
const greedy = { temperature: 0 };
const { prompt, greedy: expected } = goldenOf(tinyCase("llama"));
const request = { prompt: Uint32Array.from(prompt), maxTokens: 16, sampling: greedy };
const answer = expected.slice(0, 16);

/** A request that ends only when it is ended. */
const endless = { prompt: Uint32Array.of(1, 2, 3), maxTokens: 100_000, sampling: greedy };
const options = { blocks: 32, dtype: "float32" } as const;

async function tokens(events: AsyncIterable<EngineEvent>): Promise<number[]> {
  const found: number[] = [];
  for await (const { token } of events) if (token !== undefined) found.push(token);
  return found;
}

describe("the Worker", () => {
  test("opens MLX, answers, and ends", async () => {
    const engine = await start();
    const report = await engine.inspect(true);
    expect(report).toMatchObject({ backend: backend(), mlxVersion: expect.any(String) });
    expect(report.matmulGflops).toBeGreaterThan(0);
    await engine.stop();
  });

  test("reports that there is no memory for the blocks, and goes on", async () => {
    const engine = await start();
    const before = (await engine.stats()).length;
    const failure = await engine.load("m", folder, { blocks: 2 ** 32 }).catch((error) => error);
    expect(failure.message).toMatch(/KV blocks take \d+.* GiB, but the weights .*--kv-memory$/);
    expect(await engine.stats()).toHaveLength(before);
    expect((await engine.load("m", folder, { blocks: 4 })).blocks).toBe(4);
    await engine.stop();
  });

  test("can be started again and again", async () => {
    for (let i = 0; i < 5; i++) {
      const engine = await start();
      expect(await engine.stats()).toEqual([]);
      await engine.stop();
    }
  });

  test("that cannot open its library fails the start with the library's name", async () => {
    const started = EngineClient.start({ ...setup, library: "/nowhere/libmlxc.so" });
    expect(await started.catch((error) => error.message)).toContain("/nowhere/libmlxc.so");
  });

  test("that has ended answers with an error", async () => {
    const engine = await start();
    await engine.stop();
    expect(await engine.inspect().catch((error) => error.message)).toBe("the engine has ended");
    const events = engine.submit("m", request);
    expect(await tokens(events).catch((error) => error)).toBeInstanceOf(EngineError);
    await engine.stop();
  });
});

describe("a request", () => {
  test("gets the model's tokens, and many at once get theirs", async () => {
    const engine = await start();
    const info = await engine.load("m", folder, options);
    expect(info).toMatchObject({ model: "m", blocks: 32, vocabulary: expect.any(Number) });
    const all = await Promise.all(
      Array.from({ length: 9 }, () => tokens(engine.submit("m", request))),
    );
    expect(all).toEqual(Array(9).fill(answer));
    expect(engine.active).toBe(0);
    expect(readGauges(...info.gauges).held).toBe(0);
    await engine.stop();
  });

  test("with several answers gets all of them, and one can be ended alone", async () => {
    const engine = await start();
    await engine.load("m", folder, options);
    const events = engine.submit("m", { ...endless, maxTokens: 40, n: 3 });
    const counts = [0, 0, 0];
    const ends: (string | undefined)[] = [];
    for await (const { index, token, finished } of events) {
      if (token !== undefined) counts[index]! += 1;
      if (index === 1 && counts[1] === 5) engine.abortAnswer(events, 1);
      if (finished) ends[index] = finished;
    }
    expect(ends).toEqual(["length", "abort", "length"]);
    expect([counts[0], counts[2]]).toEqual([40, 40]);
    expect(counts[1]).toBeLessThan(40);
    await engine.stop();
  });

  test("whose reader leaves is aborted, and its blocks are free", async () => {
    const engine = await start();
    const { gauges } = await engine.load("m", folder, options);
    for await (const { index } of engine.submit("m", endless)) {
      expect(index).toBe(0);
      break;
    }
    // The next question is answered after the abort was taken in.
    expect((await engine.stats())[0]!.requests).toEqual([]);
    expect(engine.active).toBe(0);
    expect(readGauges(...gauges).held).toBe(0);
    await engine.stop();
  });

  test("that cannot be answered is refused with the reason", async () => {
    const engine = await start();
    const { maxLength, vocabulary } = await engine.load("m", folder, { ...options, maxWaiting: 1 });
    const reason = (prompt: Uint32Array) =>
      tokens(engine.submit("m", { ...request, prompt })).catch(
        (error: RefusedError) => error.reason,
      );
    expect(await reason(new Uint32Array(0))).toBe("bad_token");
    expect(await reason(Uint32Array.of(vocabulary))).toBe("bad_token");
    expect(await reason(new Uint32Array(Math.min(maxLength, 32 * 32)))).toBe("too_long");
    const many = Array.from({ length: 40 }, () => tokens(engine.submit("m", request)));
    const results = await Promise.allSettled(many);
    const refused = results.filter(({ status }) => status === "rejected");
    expect(refused.length).toBeGreaterThan(0);
    expect((refused[0] as PromiseRejectedResult).reason.reason).toBe("queue_full");
    expect(await tokens(engine.submit("m", request))).toEqual(answer);
    await engine.stop();
  });

  test("to a model that is not loaded fails with its name", async () => {
    const engine = await start();
    const message = await tokens(engine.submit("ghost", request)).catch((error) => error.message);
    expect(message).toBe("ghost is not loaded");
    await engine.stop();
  });
});

describe("models", () => {
  test("are loaded once, several side by side, and unloaded", async () => {
    const engine = await start();
    const [first, again] = await Promise.all([
      engine.load("a", folder, options),
      engine.load("a", folder, options),
    ]);
    expect(again).toBe(first);
    await engine.load("b", folder, { ...options, maxBatch: 1 });
    const answers = await Promise.all(
      ["a", "b", "a"].map((name) => tokens(engine.submit(name, request))),
    );
    expect(answers).toEqual(Array(3).fill(answer));
    await engine.unload("a");
    expect((await engine.stats()).map(({ model }) => model)).toEqual(["b"]);
    await engine.load("a", folder, options);
    expect(await tokens(engine.submit("a", request))).toEqual(answer);
    await engine.stop();
  });

  test("go on while another is loaded", async () => {
    let steps = 0;
    const engine = await start({ onStep: () => steps++ });
    await engine.load("one", folder, options);
    const loading = engine.load("other", folder, options);
    const given = engine.submit("one", request);
    await loading;
    expect(steps).toBeGreaterThan(0);
    expect(await tokens(given)).toEqual(answer);
    await engine.stop();
  });

  test("that are not loaded yet get what was sent to them then, in its order", async () => {
    const engine = await start();
    await engine.load("one", folder, options);
    const busy = engine.submit("one", endless);
    await busy.read();
    const loading = engine.load("other", folder, options);
    const given = engine.submit("other", request);
    const left = engine.submit("other", endless);
    left.leave();
    busy.leave();
    const unloading = engine.unload("one");
    expect(await tokens(given)).toEqual(answer);
    await Promise.all([loading, unloading]);
    expect((await engine.stats()).map(({ model }) => model)).toEqual(["other"]);
    await engine.stop();
  });

  test("that cannot be loaded are an error that says why, and can be tried again", async () => {
    const engine = await start();
    const failed = await engine.load("m", "/nowhere", options).catch((error) => error);
    expect(failed).toBeInstanceOf(EngineError);
    expect(failed.message).toContain("/nowhere/config.json");
    await engine.load("m", folder, options);
    await engine.stop();
  });

  test("that are unloaded and loaded in the same breath are loaded, and answer", async () => {
    const engine = await start();
    const before = await engine.load("m", folder, options);
    const unloading = engine.unload("m");
    const loading = engine.load("m", folder, options);
    const given = tokens(engine.submit("m", request));
    await unloading;
    expect(await loading).not.toBe(before);
    expect(await given).toEqual(answer);
    // The record of the second load is the one that lasts.
    expect(await engine.load("m", folder, options)).toBe(await loading);
    await engine.stop();
  });

  test("whose Worker dies while they are unloaded are unloaded", async () => {
    const engine = await start();
    await engine.load("m", folder, options);
    const unloading = engine.unload("m");
    await Promise.all([engine.kill(), unloading]);
    expect(await engine.stats()).toEqual([]);
    await engine.stop();
  });

  test("without batching answer one request after the other", async () => {
    const reports: StepReport[] = [];
    const engine = await start({ onStep: (report) => reports.push(report) });
    await engine.load("m", folder, { ...options, maxBatch: 1 });
    const all = await Promise.all(
      Array.from({ length: 3 }, () => tokens(engine.submit("m", request))),
    );
    expect(all).toEqual(Array(3).fill(answer));
    expect(reports.every(({ rows }) => rows === 1)).toBe(true);
    await engine.stop();
  });
});

describe("a Worker that dies", () => {
  test("ends its requests with an error; another takes its place with the same model", async () => {
    const failures: Error[] = [];
    const engine = await start({ onFailure: (error) => failures.push(error) });
    await engine.load("m", folder, options);
    const events = engine.submit("m", endless);
    await events.next();
    const question = engine.inspect(true);
    await engine.kill();
    expect(await tokens(events).catch((error) => error)).toBeInstanceOf(Error);
    expect(await question.catch((error) => error)).toBeInstanceOf(Error);
    expect([engine.alive, engine.active, failures.length]).toEqual([true, 0, 1]);
    expect(await tokens(engine.submit("m", request))).toEqual(answer);
    await engine.stop();
    expect(failures).toHaveLength(1);
  });

  test("again and again is not restarted, until a request needs it", async () => {
    const failures: Error[] = [];
    const engine = await start({ onFailure: (error) => failures.push(error) });
    await engine.load("m", folder, options);
    for (let i = 0; i < 4; i++) {
      expect(engine.alive).toBe(true);
      await engine.stats(); // It is ready.
      await engine.kill();
    }
    expect([engine.alive, failures.length]).toEqual([false, 4]);
    const refused = await tokens(engine.submit("m", request)).catch((error) => error.message);
    expect(refused).toBe("the engine is down");
    await engine.load("m", folder, options);
    expect(await tokens(engine.submit("m", request))).toEqual(answer);
    await engine.stop();
  });
});

describe("reports", () => {
  test("of a step have its rows, tokens and blocks, and those of a request its standing", async () => {
    const reports: StepReport[] = [];
    const engine = await start({ onStep: (report) => reports.push(report) });
    await engine.load("m", folder, options);
    const low = engine.submit("m", { ...endless, priority: "LOW" });
    for (let i = 0; i < 3; i++) await low.next();
    const [stats] = await engine.stats();
    expect(stats).toMatchObject({ model: "m", preemptions: 0, promptTokens: 3 });
    expect(stats!.forwards).toBe(stats!.steps);
    expect(stats!.requests).toMatchObject([
      { index: 0, state: "running", priority: "LOW", promptTokens: 3, blocks: 1, cachedTokens: 0 },
    ]);
    const { batch, requests } = reports.at(-1)!;
    expect([batch, requests]).toEqual([undefined, undefined]);
    expect(stats!.requests[0]!.standing).toBeCloseTo(stats!.requests[0]!.ageMs / 10_000, 6);
    await low.return();
    await engine.stop();
    expect(reports[0]).toMatchObject({ model: "m", step: 0, rows: 1, prefillTokens: 3 });
    expect(reports[1]).toMatchObject({ step: 1, prefillTokens: 0, decodeTokens: 1, running: 1 });
    expect(reports[0]!.blocks).toEqual({ total: 32, free: 31, cached: 0, held: 1, shared: 0 });
  });

  test("of a step list each request with `debug`", async () => {
    const reports: StepReport[] = [];
    const engine = await start({ onStep: (report) => reports.push(report) });
    await engine.load("m", folder, { ...options, debug: true, maxBatch: 1 });
    const asked = [request, { ...request, priority: "HIGH" as const }];
    await Promise.all(asked.map((each) => tokens(engine.submit("m", each))));
    await engine.stop();
    expect(reports[0]!.requests).toMatchObject([
      { state: "running", priority: "HIGH", generated: 1, blocks: 2, cachedTokens: 0 },
      { state: "waiting", priority: "NORMAL", generated: 0, blocks: 0 },
    ]);
    expect(reports[0]!.batch).toMatchObject([{ index: 0, tokens: prompt.length }]);
    // The second found the first's blocks.
    expect(reports.at(-2)!.requests).toMatchObject([{ priority: "NORMAL", cachedTokens: 32 }]);
  });
});
