import { expect, test } from "bun:test";
import type { PsResponse } from "../../src/api/admin.ts";
import { startTestServer } from "../support/server.ts";

test("blocks that several sequences share are counted once in /metrics and /ps", async () => {
  const server = await startTestServer();
  const counts = async () => {
    const { models } = (await (await server.get("/ps")).json()) as PsResponse;
    return [await server.metric("mlx_serve_kv_shared_blocks"), models[0]!.blocks.shared];
  };
  expect(await counts()).toEqual([0, 0]);
  const leaving = new AbortController();
  // Two full blocks; the third is copied when a sequence writes to it.
  const body = { prompt: "a".repeat(70), n: 3, max_tokens: 3500, ignore_eos: true, stream: true };
  await server.post("/v1/completions", body, { signal: leaving.signal });
  while ((await server.metric("mlx_serve_requests_running")) < 3) await Bun.sleep(5);
  expect(await counts()).toEqual([2, 2]);
  const { total } = server.serving.models.loaded()[0]!.blocks;
  expect(await server.metric("mlx_serve_kv_blocks")).toBe(total);
  leaving.abort();
  await server.settled();
  expect(await counts()).toEqual([0, 0]);
  await server.stop();
});
