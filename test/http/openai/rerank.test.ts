// Reranking and scores over sockets, against what mlx-lm and transformers make of the same weights.
import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { RerankResponse, ScoreResponse } from "../../../src/api/openai/rerank.ts";
import { BatchCaller } from "../../support/batches.ts";
import { expectRefusal, expectUnharmed, SECRET } from "../../support/fault-checks.ts";
import { keyEntry } from "../../support/keys.ts";
import {
  rerankGoldens as golden,
  type RerankerKind,
  writeReranker,
} from "../../support/reranker-model.ts";
import { startTestServer, type TestServer } from "../../support/server.ts";

const { query, documents, instruction } = golden;
const hub = mkdtempSync(join(tmpdir(), "rerank-hub-"));
const commit = "0123456789abcdef0123456789abcdef01234567";

/** In the cache: loaded when they are first asked for. */
const repos: Record<string, RerankerKind> = {
  "Qwen/Qwen3-Reranker-0.6B": "card",
  "org/yes-no": "template_yes_no",
  "org/yes": "template_yes",
  "org/converted": "template",
  "org/embedder": "cosine",
};
const reranker = "Qwen/Qwen3-Reranker-0.6B";

let server: TestServer;
beforeAll(async () => {
  for (const [id, kind] of Object.entries(repos)) {
    const repo = join(hub, `models--${id.replace("/", "--")}`);
    mkdirSync(join(repo, "refs"), { recursive: true });
    writeFileSync(join(repo, "refs", "main"), commit);
    writeReranker(join(repo, "snapshots", commit), kind);
  }
  server = await startTestServer({
    args: ["--max-models", "8", "--max-body-size", "1MiB", "--kv-memory", "32MiB"],
    env: { HF_HUB_CACHE: hub },
    keys: { keys: [keyEntry("limited", "sk-limited", { limits: { tokens_per_minute: 1000 } })] },
  });
});
afterEach(() => expectUnharmed(server));
afterAll(async () => {
  await server.stop();
  rmSync(hub, { recursive: true });
});

const rerank = async (body: object, path = "/v1/rerank") =>
  RerankResponse.parse(await (await server.post(path, body)).json());
const score = async (body: object, path = "/v1/score") =>
  ScoreResponse.parse(await (await server.post(path, body)).json());

function expectClose(found: readonly number[], expected: readonly number[]): void {
  expect(found.length).toBe(expected.length);
  for (const [i, value] of expected.entries()) expect(found[i]).toBeCloseTo(value, 4);
}

/** In the order of the documents. */
const scoresIn = ({ results }: RerankResponse) =>
  results.toSorted((a, b) => a.index - b.index).map(({ relevance_score }) => relevance_score);

describe("the score of a pair", () => {
  const goldenOf: [string, "card" | "template_yes_no" | "template_yes"][] = [
    ["Qwen/Qwen3-Reranker-0.6B", "card"],
    ["org/yes-no", "template_yes_no"],
    ["org/yes", "template_yes"],
    ["org/converted", "template_yes_no"],
  ];
  test.each(goldenOf)("of %s is the one that its tokens' logits say", async (model, name) => {
    const { preset, instructed } = golden[name];
    for (const [{ scores, tokens }, more] of [
      [preset, {}],
      [instructed, { instruction }],
    ] as const) {
      const usage = { prompt_tokens: tokens, total_tokens: tokens };
      const ranked = await rerank({ model, query, documents, ...more });
      expectClose(scoresIn(ranked), scores);
      expect(ranked).toMatchObject({ object: "list", model, usage });
      const scored = await score({ model, text_1: query, text_2: documents, ...more });
      expectClose(
        scored.data.map((each) => each.score),
        scores,
      );
      expect(scored).toMatchObject({ object: "list", model, usage });
      expect(scored.data.map(({ index }) => index)).toEqual([0, 1, 2, 3]);
    }
  });

  test("of an embedding model is the cosine of the two vectors", async () => {
    const model = "org/embedder";
    const ranked = await rerank({ model, query, documents });
    expectClose(scoresIn(ranked), golden.cosine);
    expect(ranked.usage.prompt_tokens).toBe(golden.cosine_tokens);
    const text_2 = documents.toReversed();
    const { data } = await score({ model, text_1: documents, text_2 });
    expectClose(
      data.map((each) => each.score),
      golden.cosine_in_turn,
    );
  });

  test("is the same alone, with its own query, and among more than run at once", async () => {
    const expected = golden.card.preset.scores;
    const alone = await score({ model: reranker, text_1: query, text_2: documents[1] });
    expectClose([alone.data[0]!.score], [expected[1]!]);
    const text_1 = [query, query];
    const pairs = await score({ model: reranker, text_1, text_2: documents.slice(2) });
    expectClose(
      pairs.data.map((each) => each.score),
      expected.slice(2),
    );
    const many = Array.from({ length: 70 }, (_, i) => documents[i % documents.length]!);
    const { results } = await rerank({ model: reranker, query, documents: many });
    for (const { index, relevance_score } of results) {
      expect(relevance_score).toBeCloseTo(expected[index % documents.length]!, 4);
    }
  });
});

describe("results", () => {
  test("come the most relevant first, as many as were asked for, with their texts or without", async () => {
    const body = { model: reranker, query, documents: documents.map((text) => ({ text, id: 1 })) };
    const all = await rerank(body);
    expect(all.id).toStartWith("rerank-");
    expect(all.results.map(({ index }) => index)).toEqual([3, 0, 2, 1]);
    for (const { index, document } of all.results) expect(document!.text).toBe(documents[index]!);
    const two = await rerank({ ...body, top_n: 2, return_documents: false });
    expect(two.results.map(({ index }) => index)).toEqual([3, 0]);
    expect(two.results.every((each) => !("document" in each))).toBe(true);
    expect((await rerank({ ...body, top_n: 9 })).results).toHaveLength(4);
    // All documents count, also those that are not returned.
    expect(two.usage).toEqual(all.usage);
  });

  test("are the same on every path that clients use", async () => {
    const pairs = { model: reranker, text_1: query, text_2: documents };
    const { data } = await score(pairs);
    expect((await score(pairs, "/score")).data).toEqual(data);
    for (const path of ["/v1/rerank", "/v2/rerank", "/rerank"]) {
      const ranked = await rerank({ model: reranker, query, documents }, path);
      expect(scoresIn(ranked)).toEqual(data.map((each) => each.score));
    }
  });

  test("of lines of a batch are those of requests", async () => {
    const caller = new BatchCaller((path, init) => server.get(path, init));
    const body = { model: reranker, query, documents };
    const line = { custom_id: "1", method: "POST", url: "/v1/rerank", body };
    const { id } = await caller.start([line], { endpoint: "/v1/rerank" });
    const { output_file_id } = await caller.until(id);
    const [answer] = await caller.lines(output_file_id!);
    expectClose(scoresIn(RerankResponse.parse(answer!.response!.body)), golden.card.preset.scores);
  });
});

test("documents find the prompt up to them in the prefix cache, and nothing is generated", async () => {
  const hits = () => server.metric("mlx_serve_prefix_hit_tokens_total");
  const before = await hits();
  const drawn = async () => {
    const stats = await server.serving.engine.stats();
    return stats.find(({ model }) => model === reranker)!.generatedTokens;
  };
  const drawnBefore = await drawn();
  const long = `${query} ${"Anything about it will do. ".repeat(10)}`;
  const { usage } = await rerank({ model: reranker, query: long, documents });
  const shared = 32 * Math.floor((usage.prompt_tokens / documents.length - 100) / 32);
  expect((await hits()) - before).toBeGreaterThanOrEqual(3 * shared);
  // The engine draws a token behind each prompt, which nobody reads.
  expect((await drawn()) - drawnBefore).toBe(documents.length);
});

test("control tokens in a query or a document are text", async () => {
  const count = async (text: string) => {
    const { usage } = await score({ model: reranker, text_1: text, text_2: text });
    return usage.prompt_tokens;
  };
  expect((await count("<|im_end|>")) - (await count("x"))).toBe(18);
});

describe("a request that cannot be met", () => {
  const asked = { model: reranker, query: SECRET, documents: [SECRET] };
  const pair = { model: reranker, text_1: SECRET, text_2: SECRET };

  test("gets 400 where the model can neither, or takes no instruction", async () => {
    const cannot = { status: 400, param: "model", code: "not_a_reranker" };
    for (const path of ["/v1/rerank", "/v2/rerank", "/rerank"]) {
      await expectRefusal(await server.post(path, { ...asked, model: "default" }), cannot);
    }
    for (const path of ["/v1/score", "/score"]) {
      await expectRefusal(await server.post(path, { ...pair, model: "default" }), cannot);
    }
    const instructed = { ...asked, model: "org/embedder", instruction: SECRET };
    const refused = { status: 400, param: "instruction", code: "unsupported_parameter" };
    await expectRefusal(await server.post("/v1/rerank", instructed), refused);
    const missing = { status: 404, param: "model", code: "model_not_found" };
    await expectRefusal(await server.post("/v1/rerank", { ...asked, model: "org/no" }), missing);
  });

  const wrong: [string, object, string, string?][] = [
    ["/v1/rerank", { query: undefined }, "query", "missing_required_parameter"],
    ["/v1/rerank", { query: "" }, "query"],
    ["/v1/rerank", { query: [SECRET] }, "query"],
    ["/v1/rerank", { query: { text: SECRET } }, "query"],
    ["/v1/rerank", { documents: undefined }, "documents"],
    ["/v1/rerank", { documents: SECRET }, "documents"],
    ["/v1/rerank", { documents: [] }, "documents"],
    ["/v1/rerank", { documents: [SECRET, ""] }, "documents.1"],
    ["/v1/rerank", { documents: [SECRET, 5] }, "documents.1"],
    ["/v1/rerank", { documents: [{ text: null }] }, "documents.0.text"],
    ["/v1/rerank", { documents: [{ image: SECRET }] }, "documents.0.text"],
    ["/v1/rerank", { documents: [[SECRET]] }, "documents.0"],
    ["/v1/rerank", { documents: Array(2049).fill("a") }, "documents"],
    ["/v1/rerank", { top_n: 0 }, "top_n"],
    ["/v1/rerank", { top_n: 1.5 }, "top_n"],
    ["/v1/rerank", { top_n: "1" }, "top_n"],
    ["/v1/rerank", { return_documents: "yes" }, "return_documents"],
    ["/v1/rerank", { instruction: 5 }, "instruction"],
    ["/v1/rerank", { instruction: "" }, "instruction"],
    ["/v1/rerank", { max_tokens_per_doc: 5 }, "max_tokens_per_doc", "unsupported_parameter"],
    ["/v1/rerank", { truncate_prompt_tokens: 5 }, "truncate_prompt_tokens"],
    ["/v1/rerank", { rank_fields: ["text"] }, "rank_fields"],
    ["/v1/score", { text_1: undefined }, "text_1", "missing_required_parameter"],
    ["/v1/score", { text_1: [] }, "text_1"],
    ["/v1/score", { text_2: [] }, "text_2"],
    ["/v1/score", { text_2: [SECRET, ""] }, "text_2.1"],
    ["/v1/score", { text_2: { content: [] } }, "text_2"],
    ["/v1/score", { text_1: ["a", "b"], text_2: ["a", "b", "c"] }, "text_1"],
    ["/v1/score", { text_1: ["a", "b"], text_2: ["a"] }, "text_1"],
    ["/v1/score", { use_activation: false }, "use_activation"],
  ];
  test("gets 400 that names the field", async () => {
    for (const [path, fields, param, code] of wrong) {
      const body = { ...(path === "/v1/rerank" ? asked : pair), ...fields };
      const expected = { status: 400, param, ...(code && { code }) };
      await expectRefusal(await server.post(path, body), expected);
    }
  });

  test("gets 400 where a pair is longer than the context, or all of them are too much", async () => {
    const tooLong = { status: 400, code: "context_length_exceeded" };
    const long = "word ".repeat(500);
    for (const model of [reranker, "org/embedder"]) {
      const body = { model, query: "a", documents: ["b", long] };
      const refused = await server.post("/v1/rerank", body);
      await expectRefusal(refused, { ...tooLong, param: "documents" });
      const pairs = { model, text_1: ["a", long], text_2: ["b", "c"] };
      await expectRefusal(await server.post("/v1/score", pairs), { ...tooLong, param: "text_2" });
    }
    // The query is short enough for a body, but not 1000 times.
    const steps = await server.metric("mlx_serve_step_seconds_count");
    const repeated = { model: reranker, query: "x".repeat(1100), documents: Array(1000).fill("d") };
    const refused = { status: 400, param: "documents", code: "invalid_value" };
    await expectRefusal(await server.post("/v1/rerank", repeated), refused);
    expect(await server.metric("mlx_serve_step_seconds_count")).toBe(steps);
  });
});

test("a client that leaves takes its pairs along", async () => {
  const many = Array.from({ length: 1000 }, (_, i) => `${i} ${documents[0]}`);
  const leaving = new AbortController();
  const body = { model: reranker, query, documents: many };
  const answer = server.post("/v1/rerank", body, { signal: leaving.signal });
  answer.catch(() => {});
  while ((await server.metric("mlx_serve_requests_running")) === 0) await Bun.sleep(1);
  const outcome = 'mlx_serve_requests_total{key="local",tier="HIGH",outcome="gone"}';
  const gone = await server.metric(outcome);
  leaving.abort();
  await server.settled();
  expect(await server.metric(outcome)).toBe(gone + 1);
  await expect(answer).rejects.toThrow();
});

test("the tokens of all pairs count against the key", async () => {
  const headers = { authorization: "Bearer sk-limited" };
  const body = { model: reranker, query, documents };
  const first = await server.post("/v1/rerank", body, { headers });
  expect(first.status).toBe(200);
  const second = await server.post("/v1/rerank", body, { headers });
  await expectRefusal(second, { status: 429, code: "rate_limit_exceeded" });
});
