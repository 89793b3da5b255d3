import { describe, expect, test } from "bun:test";
import type { PsResponse } from "../../../src/api/owner/admin.ts";
import { keyEntry } from "../../support/keys.ts";
import { startTestServer } from "../../support/server.ts";
import { settled, useTestServer } from "../../support/use-server.ts";

test("blocks that several sequences share are counted once in /metrics and /ps", async () => {
  await using server = await startTestServer();
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
});

test("a request whose client has left is in progress until its last token has come", async () => {
  await using server = await startTestServer();
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
});

describe("with keys", () => {
  const keys = ["alice", "bob", "carol"].map((name) => keyEntry(name, `sk-${name}`));
  const server = useTestServer({ keys: { keys } }, settled);

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

  test("refusals are counted by key, status and reason", async () => {
    const limited = keyEntry("dave", "sk-dave", { limits: { requests_per_minute: 1 } });
    const args = ["--no-batching", "--max-queue", "1"];
    await using strict = await startTestServer({ keys: { keys: [limited] }, args });
    const ask = (key: string, body: object) =>
      strict.post("/v1/completions", body, { headers: { authorization: `Bearer ${key}` } });
    const body = { prompt: "Hi", max_tokens: 1 };
    const statuses = [];
    for (const response of [
      await ask("sk-nobody", body),
      await strict.get("/v1/models", { headers: { "x-api-key": "wrong", authorization: "" } }),
      await ask("sk-dave", body),
      await ask("sk-dave", body),
      await strict.get("/ps", of("dave")),
      await strict.get("/absent"),
      await strict.post("/v1/completions", { prompt: "a".repeat(5000) }),
      await strict.post("/v1/completions", { prompt: "Hi", model: "absent/model" }),
    ]) {
      statuses.push(response.status);
      await response.text();
    }
    expect(statuses).toEqual([401, 401, 200, 429, 403, 404, 400, 404]);
    const count = (key: string, status: number, reason: string) =>
      strict.metric(`mlx_serve_refusals_total{key="${key}",status="${status}",reason="${reason}"}`);
    expect(await count("", 401, "invalid_api_key")).toBe(2);
    expect(await count("dave", 429, "rate_limit_exceeded")).toBe(1);
    expect(await count("dave", 403, "forbidden")).toBe(1);
    expect(await count("local", 404, "not_found")).toBe(1);
    expect(await count("local", 400, "context_length_exceeded")).toBe(1);
    expect(await count("local", 404, "model_not_found")).toBe(1);
    expect(await strict.metric("mlx_serve_refusals_total")).toBe(7);

    const leaving = new AbortController();
    const long = { prompt: "Hi", max_tokens: 3000, ignore_eos: true };
    const asked = Array.from({ length: 4 }, () =>
      strict.post("/v1/completions", long, { signal: leaving.signal }),
    );
    const first = await Promise.race(asked);
    expect(first.status).toBe(429);
    expect(await first.json()).toMatchObject({ error: { code: "queue_full" } });
    expect(await count("local", 429, "queue_full")).toBeGreaterThan(0);
    leaving.abort();
    await Promise.allSettled(asked);
    await strict.settled();
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
