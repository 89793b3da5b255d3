import { expect, test } from "bun:test";
import { backend, findLibrary } from "../../ffi/native.ts";
import { EngineClient } from "../../src/engine/client.ts";
import type { WorkerSetup } from "../../src/engine/protocol.ts";

const setup: WorkerSetup = {
  library: findLibrary(),
  device: backend() === "cpu" ? "cpu" : "gpu",
  trace: false,
};

test("the Worker opens MLX, answers, and ends", async () => {
  const engine = await EngineClient.start(setup);
  const report = await engine.inspect();
  expect(report).toMatchObject({ backend: backend(), mlxVersion: expect.any(String) });
  expect(report.matmulGflops).toBeGreaterThan(0);
  await engine.stop();
});

test("questions asked at once are answered each", async () => {
  const engine = await EngineClient.start(setup);
  const reports = await Promise.all(Array.from({ length: 5 }, () => engine.inspect()));
  expect(reports.map(({ backend }) => backend)).toEqual(Array(5).fill(backend()));
  await engine.stop();
});

test("a Worker can be started again and again", async () => {
  for (let i = 0; i < 5; i++) {
    const engine = await EngineClient.start(setup);
    await engine.inspect();
    await engine.stop();
  }
});

test("a library that cannot be opened fails the start with its name", async () => {
  const start = EngineClient.start({ ...setup, library: "/nowhere/libmlxc.so" });
  expect(start).rejects.toThrow("/nowhere/libmlxc.so");
  await start.catch(() => {});
});

test("an engine that has ended answers with an error", async () => {
  const engine = await EngineClient.start(setup);
  await engine.stop();
  const answer = engine.inspect();
  expect(answer).rejects.toThrow("the engine has ended");
  await answer.catch(() => {});
  await engine.stop();
});
