import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { PsResponse } from "../../src/api/admin.ts";
import { keyEntry } from "../support/keys.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

test("blocks that several sequences share are counted once in /metrics and /ps", async () => {
  const server = await startTestServer();
  const counts = async () => {
    const { models } = (await (await server.get("/ps")).json()) as PsResponse;
    return [await server.metric("mlx_serve_kv_shared_blocks"), models[0]!.blocks.shared];
  };
  expect(await counts()).toEqual([0, 0]);
  const leaving = new AbortController();
  // Two full blocks; the third is shared too, until a sequence writes to it.
  const body = { prompt: "a".repeat(70), n: 3, max_tokens: 3500, ignore_eos: true, stream: true };
  await server.post("/v1/completions", body, { signal: leaving.signal });
  while (!Bun.deepEquals(await counts(), [2, 2])) await Bun.sleep(5);
  expect(await server.metric("mlx_serve_requests_running")).toBe(3);
  const { total } = server.serving.models.loaded()[0]!.blocks;
  expect(await server.metric("mlx_serve_kv_blocks")).toBe(total);
  leaving.abort();
  await server.settled();
  expect(await counts()).toEqual([0, 0]);
  await server.stop();
});

test("a request whose client has left is in progress until its last token has come", async () => {
  const server = await startTestServer();
  const generated = () => server.metric("mlx_serve_generated_tokens_total");
  for (let i = 0; i < 20; i++) {
    const leaving = new AbortController();
    const body = { prompt: "Hi", max_tokens: 3000, ignore_eos: true, stream: true };
    await server.post("/v1/completions", body, { signal: leaving.signal });
    leaving.abort();
    while ((await server.metric("mlx_serve_requests_in_progress")) > 0) await Bun.sleep(1);
    const before = await generated();
    await Bun.sleep(10);
    expect(await generated()).toBe(before);
  }
  await server.stop();
});

describe("with keys", () => {
  const keys = ["alice", "bob", "carol"].map((name) => keyEntry(name, `sk-${name}`));
  let server: TestServer;
  beforeAll(async () => {
    server = await startTestServer({ keys: { keys } });
  });
  afterAll(() => server.stop());

  const of = (name: string) => ({ headers: { authorization: `Bearer sk-${name}` } });
  const complete = (name: string, tokens: number) =>
    server.post(
      "/v1/completions",
      { prompt: "Hi", max_tokens: tokens, ignore_eos: true },
      of(name),
    );
  const metrics = async (name: string) => {
    const text = await (await server.get("/metrics", of(name))).text();
    return text.split("\n").filter((line) => line !== "" && !line.startsWith("#"));
  };
  const keysIn = (lines: readonly string[]) =>
    new Set(lines.map((line) => /[{,]key="([^"]*)"/.exec(line)?.[1]));

  test("a key sees its own figures, the owner all", async () => {
    await (await complete("alice", 3)).json();
    await (await complete("bob", 5)).json();
    for (const [name, tokens] of [
      ["alice", 3],
      ["bob", 5],
    ] as const) {
      const own = await metrics(name);
      expect(keysIn(own)).toEqual(new Set([name]));
      expect(own).toContain(
        `mlx_serve_generated_tokens_total{key="${name}",model="tiny"} ${tokens}`,
      );
      expect(own).toContain(`mlx_serve_requests_in_progress{key="${name}",tier="NORMAL"} 0`);
      expect(own).toContain(
        `mlx_serve_requests_total{key="${name}",tier="NORMAL",outcome="done"} 1`,
      );
      const histogram = new RegExp(
        `^mlx_serve_first_token_seconds_count\\{.*key="${name}".*\\} 1$`,
      );
      expect(own.filter((line) => histogram.test(line))).toHaveLength(1);
    }
    expect(await metrics("carol")).toEqual([]);
    const all = await (await server.get("/metrics")).text();
    expect(await server.metric("mlx_serve_generated_tokens_total")).toBe(8);
    expect(all).toContain('mlx_serve_kv_blocks{model="tiny",state="held"} 0');
    expect(keysIn(all.split("\n"))).toEqual(new Set([undefined, "alice", "bob"]));
  });

  test("a key that is gone is forgotten, once its requests have ended", async () => {
    const { ring, metrics: own } = server.serving;
    const leaving = new AbortController();
    const body = { prompt: "Hi", max_tokens: 3000, ignore_eos: true, stream: true };
    const init = { ...of("bob"), signal: leaving.signal };
    await server.post("/v1/completions", body, init);
    ring.reload({ keys: keys.slice(2) });
    await own.keepKeys(ring.names);
    const shown = async () => keysIn((await (await server.get("/metrics")).text()).split("\n"));
    expect(await shown()).toEqual(new Set([undefined, "bob"]));
    expect(await server.metric("mlx_serve_requests_in_progress")).toBe(1);
    leaving.abort();
    await server.settled();
    await own.keepKeys(ring.names);
    expect(await shown()).toEqual(new Set([undefined]));
  });
});
