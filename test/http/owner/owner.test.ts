// The owner's endpoints that the console reads: models, plans, keys, batches of all keys, the benchmark.
import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { KeyBatches } from "../../../src/api/openai/batches.ts";
import { ModelStates, PlanResponse } from "../../../src/api/owner/admin.ts";
import { BenchEvent } from "../../../src/api/owner/bench.ts";
import { ConsoleSession } from "../../../src/api/owner/console.ts";
import { AddKeyResponse, KeyList } from "../../../src/api/owner/keys.ts";
import { readKeyFile } from "../../../src/keys/key-file.ts";
import { writeChatModel } from "../../support/chat-model.ts";
import { expectRefusal } from "../../support/fault-checks.ts";
import { keyEntry } from "../../support/keys.ts";
import { startTestServer, type TestServer } from "../../support/server.ts";

const hub = mkdtempSync(join(tmpdir(), "mlx-serve-owner-hub-"));
const ALICE = { headers: { authorization: "Bearer sk-alice" } };
const [OTHER, BROKEN] = ["org/other", "org/broken"];
const keysFile = join(hub, "keys.json");
let server: TestServer;

/** The folder of a model in the cache. */
function snapshotOf(repo: string): string {
  const folder = join(hub, `models--${repo.replace("/", "--")}`);
  const commit = "0".repeat(40);
  mkdirSync(join(folder, "refs"), { recursive: true });
  writeFileSync(join(folder, "refs", "main"), commit);
  return join(folder, "snapshots", commit);
}

beforeAll(async () => {
  writeChatModel(snapshotOf(OTHER));
  writeChatModel(snapshotOf(BROKEN));
  writeFileSync(join(snapshotOf(BROKEN), "model.safetensors"), "no weights");
  const keys = { keys: [keyEntry("alice", "sk-alice", { limits: { concurrent: 5 } })] };
  writeFileSync(keysFile, JSON.stringify(keys));
  server = await startTestServer({
    args: ["--max-models", "2", "--kv-memory", "32MiB", "--keys-file", keysFile],
    keys,
    env: { HF_HUB_CACHE: hub },
  });
});
afterEach(() => server.settled());
afterAll(async () => {
  await server.stop();
  rmSync(hub, { recursive: true });
});

const states = async () => ModelStates.parse(await (await server.get("/models")).json());
const stateOf = async (name: string) =>
  (await states()).models.find((model) => model.name === name);
const plan = async (model: string) => (await server.post("/models/plan", { model })).json();

describe("models", () => {
  test("are told with what they are and how far they are", async () => {
    const { models, memory, popular } = await states();
    expect(models.map(({ name }) => name).sort()).toEqual([BROKEN, OTHER, "tiny"]);
    expect(models[0]).toMatchObject({
      ...{ name: "tiny", state: "loaded", uses: 0, is_main: true, format: "safetensors" },
      ...{ architecture: "llama", parameters: 82240, dtype: "f32", context_length: 4096 },
      ...{ fits: true, max_model_len: 4096 },
    });
    expect(memory.room_bytes).toBeLessThanOrEqual(memory.usable_bytes);
    const { length } = popular;
    expect(length).toBeGreaterThan(5);
    for (const { bytes, fits } of popular) {
      if (bytes! > memory.room_bytes) expect(fits).toBe(false);
    }
  });

  test("are loaded and unloaded, and a failed load is remembered", async () => {
    expect((await stateOf(OTHER))?.state).toBe("not loaded");
    await server.post("/models/load", { model: OTHER });
    expect(await stateOf(OTHER)).toMatchObject({ state: "loaded", max_model_len: 4096 });
    await server.post("/models/unload", { model: OTHER });
    expect((await stateOf(OTHER))?.state).toBe("not loaded");
    const failed = await server.post("/models/load", { model: BROKEN });
    expect(failed.status).toBe(500);
    const { message } = ((await failed.json()) as { error: { message: string } }).error;
    expect(message).toStartWith("The model cannot be loaded: the model/model.safetensors: ");
    // A client that only asks for an answer is told no more than that.
    const prompt = { model: BROKEN, prompt: "Hello" };
    const refused = await server.post("/v1/completions", prompt);
    const { message: short } = await expectRefusal(refused, { status: 500 });
    expect(short).toBe("The model cannot be loaded.");
    expect((await stateOf(BROKEN))?.state).toBe("failed");
  });

  test("are planned without being loaded, and what is wrong is told without a path", async () => {
    expect(PlanResponse.parse(await plan(OTHER))).toMatchObject({
      ...{ model: OTHER, fits: true, dtype: "float32", max_model_len: 4096 },
      weight_bytes: 4 * 82240,
    });
    const broken = PlanResponse.parse(await plan(BROKEN));
    expect(broken).toMatchObject({ model: BROKEN, fits: false });
    expect(broken.problem).toContain("model.safetensors");
    expect(broken.problem).not.toContain(hub);
    await expectRefusal(await server.post("/models/plan", { model: "org/absent" }), {
      status: 404,
    });
    expect((await stateOf(OTHER))?.state).toBe("not loaded");
  });
});

test("keys are told with their limits and use, and never a key", async () => {
  const body = { prompt: "Hello", max_tokens: 6, ignore_eos: true };
  await (await server.post("/v1/completions", body, ALICE)).text();
  await server.settled();
  const text = await (await server.get("/keys")).text();
  expect(text).not.toContain("sk-");
  const { needs_key, keys } = KeyList.parse(JSON.parse(text));
  expect(needs_key).toBe(true);
  expect(keys.find(({ name }) => name === "alice")).toEqual({
    ...{ name: "alice", tier: "NORMAL", owner: false, active: 0, requests: 1 },
    limits: { requests_per_minute: null, tokens_per_minute: null, concurrent: 5 },
    ...{ prompt_tokens: 5, cached_tokens: 0, generated_tokens: 6 },
  });
  expect(keys.find(({ name }) => name === "local")).toMatchObject({ tier: "HIGH", owner: true });
});

describe("keys are made and revoked", () => {
  const add = (body: object, init?: RequestInit) => server.post("/keys", body, init);
  const revoke = (name: string) => server.post("/keys/revoke", { name });
  const statusOf = async (key: string) =>
    (await server.get("/v1/models", { headers: { authorization: `Bearer ${key}` } })).status;

  test("at once, and the key is in the response alone", async () => {
    const limits = { requests_per_minute: 60 };
    const response = await add({ name: "carol", tier: "LOW", limits });
    expect(response.headers.get("cache-control")).toBe("no-store");
    const { key, ...made } = AddKeyResponse.parse(await response.json());
    expect(made).toEqual({ name: "carol", object: "key" });
    const listed = async () => KeyList.parse(await (await server.get("/keys")).json()).keys;
    expect((await listed()).find(({ name }) => name === "carol")).toMatchObject({
      ...{ tier: "LOW", owner: false },
      limits: { requests_per_minute: 60, tokens_per_minute: null, concurrent: null },
    });
    expect([await statusOf(key), await statusOf("sk-alice")]).toEqual([200, 200]);
    expect(readFileSync(keysFile, "utf8")).not.toContain(key);
    expect(readKeyFile(keysFile)?.keys.map(({ name }) => name)).toEqual(["alice", "carol"]);
    expect(await (await revoke("carol")).json()).toEqual({
      ...{ name: "carol", object: "key", revoked: true },
    });
    expect([await statusOf(key), await statusOf("sk-alice")]).toEqual([401, 200]);
    expect((await listed()).map(({ name }) => name)).not.toContain("carol");
  });

  test("by the owner alone, and under names that are free", async () => {
    await expectRefusal(await add({ name: "dave" }, ALICE), { status: 403 });
    await expectRefusal(await server.post("/keys/revoke", { name: "alice" }, ALICE), {
      status: 403,
    });
    await expectRefusal(await add({ name: "alice" }), { status: 409, code: "key_exists" });
    for (const name of ["", "a b", "local", "api-key-1", "a".repeat(41)]) {
      await expectRefusal(await add({ name }), { status: 400, param: "name" });
    }
    const limits = { concurrent: 0 };
    await expectRefusal(await add({ name: "dave", limits }), {
      ...{ status: 400, param: "limits.concurrent" },
    });
    await expectRefusal(await revoke("local"), { status: 404, code: "key_not_found" });
    expect(readKeyFile(keysFile)?.keys).toHaveLength(1);
  });

  test("not where there are none: the first would shut its maker out", async () => {
    await using open = await startTestServer();
    await expectRefusal(await open.post("/keys", { name: "dave" }), {
      ...{ status: 409, code: "no_keys" },
    });
  });
});

test("a session says whose key it is, and whether one is needed", async () => {
  const ask = async (key?: string) => {
    const headers: Record<string, string> = key ? { authorization: `Bearer ${key}` } : {};
    return ConsoleSession.parse(
      await (await fetch(`${server.url}/console.json`, { headers })).json(),
    );
  };
  const none = { needs_key: true, caller: null, health: { status: "ok" } };
  expect(await ask()).toEqual({ ...none, sent_key: false } as ConsoleSession);
  expect(await ask("wrong")).toEqual({ ...none, sent_key: true } as ConsoleSession);
  expect((await ask("sk-alice")).caller).toMatchObject({ name: "alice", owner: false });
});

test("batches of all keys are listed, and cancelled by the owner", async () => {
  const list = async () => KeyBatches.parse(await (await server.get("/batches")).json()).batches;
  // Nothing is made on the disk for the question alone.
  expect(await list()).toEqual([]);
  const line = (i: number) => {
    const body = { prompt: `${i}`, max_tokens: 400, ignore_eos: true };
    return JSON.stringify({ custom_id: `${i}`, method: "POST", url: "/v1/completions", body });
  };
  const form = new FormData();
  form.set("purpose", "batch");
  form.set(
    "file",
    new File([Array.from({ length: 200 }, (_, i) => line(i)).join("\n")], "a.jsonl"),
  );
  const uploaded = await fetch(`${server.url}/v1/files`, { method: "POST", body: form, ...ALICE });
  const { id: input_file_id } = (await uploaded.json()) as { id: string };
  const order = { input_file_id, endpoint: "/v1/completions", completion_window: "24h" };
  const made = await server.post("/v1/batches", order, ALICE);
  const { id } = (await made.json()) as { id: string };
  expect(await list()).toMatchObject([{ id, key: "alice" }]);
  const { status } = (await (await server.post("/batches/cancel", { id })).json()) as Status;
  expect(["cancelling", "cancelled"]).toContain(status);
  await expectRefusal(await server.post("/batches/cancel", { id: "batch_absent" }), {
    status: 404,
    code: "batch_not_found",
  });
  while ((await list())[0]!.status !== "cancelled") await Bun.sleep(20);
});

type Status = { status: string };

describe("POST /bench", () => {
  const run = (body: object, init?: RequestInit) => server.post("/bench", body, init);
  const eventsOf = (text: string) =>
    Array.from(text.matchAll(/^data: (.*)$/gm), ([, data]) => BenchEvent.parse(JSON.parse(data!)));

  test("measures the server, with progress", async () => {
    const small = { mode: "batched", requests: 2, max_tokens: 3 };
    const events = eventsOf(await (await run(small)).text());
    const last = events.at(-1)!;
    if (last.type !== "results") throw new Error("there are no results");
    expect(last.results).toMatchObject([{ mode: "batched", concurrency: 2, total_tokens: 6 }]);
    expect(last.picture).toStartWith("<svg");
    expect(last.verdict).toStartWith("2 at once: ");
    const progress = events.slice(0, -1).map((event) => (event.type === "progress" ? event : null));
    expect(progress.at(0)).toEqual({ type: "progress", answered: 0, total: 4 });
    expect(progress.at(-1)).toEqual({ type: "progress", answered: 4, total: 4 });
  });

  test("is one at a time, and ends with its client", async () => {
    const controller = new AbortController();
    const long = { mode: "single", requests: 200, max_tokens: 1000 };
    const first = await run(long, { signal: controller.signal });
    await expectRefusal(await run(long), { status: 409, code: "bench_running" });
    controller.abort();
    await first.text().catch(() => {});
    const again = async () =>
      (await run({ mode: "single", requests: 1, max_tokens: 1 })).status === 200;
    // The server learns a moment later that its client has left.
    while (!(await again())) await Bun.sleep(20);
  });

  test("refuses what it cannot measure", async () => {
    await expectRefusal(await run({ mode: "dance" }), { status: 400, param: "mode" });
    await expectRefusal(await run({ model: "org/absent" }), { status: 404 });
  });
});
