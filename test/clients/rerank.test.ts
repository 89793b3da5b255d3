// Cohere's provider of the AI SDK, which looks at /v2/rerank.
import { afterAll, afterEach, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createCohere } from "@ai-sdk/cohere";
import { APICallError, rerank } from "ai";
import { rerankGoldens, writeReranker } from "../support/reranker-model.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

setDefaultTimeout(30_000);

const { query, documents, card } = rerankGoldens;
const apiKey = "sk-clients";
const folder = mkdtempSync(join(tmpdir(), "rerank-clients-"));
let server: TestServer;
beforeAll(async () => {
  const model = join(folder, "Qwen3-Reranker-tiny");
  writeReranker(model, "card");
  server = await startTestServer({ model, args: ["--api-key", apiKey] });
});
afterEach(() => server.settled());
afterAll(async () => {
  await server.stop();
  rmSync(folder, { recursive: true });
});

const modelOf = (name = "tiny", key = apiKey) =>
  createCohere({ baseURL: `${server.url}/v2`, apiKey: key }).reranking(name);

test("ranks texts", async () => {
  const { ranking, rerankedDocuments } = await rerank({ model: modelOf(), query, documents });
  expect(ranking.map(({ originalIndex }) => originalIndex)).toEqual([3, 0, 2, 1]);
  for (const { originalIndex, score, document } of ranking) {
    expect(score).toBeCloseTo(card.preset.scores[originalIndex]!, 4);
    expect(document).toBe(documents[originalIndex]!);
  }
  expect(rerankedDocuments).toEqual([3, 0, 2, 1].map((index) => documents[index]!));
  const { ranking: best } = await rerank({ model: modelOf(), query, documents, topN: 2 });
  expect(best.map(({ originalIndex }) => originalIndex)).toEqual([3, 0]);
});

test("is told what is wrong", async () => {
  const failure = (options: Partial<Parameters<typeof rerank>[0]>) =>
    rerank({ model: modelOf(), query, documents, maxRetries: 0, ...options }).then(
      () => undefined,
      (error: unknown) => error as APICallError,
    );
  const cases: [Partial<Parameters<typeof rerank>[0]>, number, string][] = [
    [{ model: modelOf("no/such-model") }, 404, "model_not_found"],
    [{ model: modelOf("tiny", "sk-wrong") }, 401, "invalid_api_key"],
    [{ documents: ["x".repeat(5000)] }, 400, "context_length_exceeded"],
    [{ providerOptions: { cohere: { maxTokensPerDoc: 5 } } }, 400, "unsupported_parameter"],
  ];
  for (const [options, status, code] of cases) {
    const error = await failure(options);
    expect(APICallError.isInstance(error)).toBe(true);
    expect(error!.statusCode).toBe(status);
    expect(JSON.parse(error!.responseBody!).error.code).toBe(code);
  }
});

test("may leave", async () => {
  const leaving = new AbortController();
  const many = Array.from({ length: 500 }, (_, i) => `${i} ${documents[0]}`);
  const { signal } = leaving;
  const ranking = rerank({ model: modelOf(), query, documents: many, abortSignal: signal });
  const failed = ranking.catch((error: Error) => error.name);
  while ((await server.metric("mlx_serve_requests_running")) === 0) await Bun.sleep(1);
  leaving.abort();
  expect(await failed).toBe("AbortError");
});
