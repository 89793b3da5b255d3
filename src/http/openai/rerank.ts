// POST /v1/rerank and /v1/score: how well documents answer queries. A reranker gets both in one prompt, and its last
// logits give the score. With an embedding model, the score is the cosine similarity of the two vectors.
import type { Context } from "hono";
import {
  RerankRequest,
  type RerankResponse,
  ScoreRequest,
  type ScoreResponse,
} from "../../api/openai/rerank.ts";
import { textTokens } from "../../conversation/prompt.ts";
import type { Priority } from "../../engine/protocol.ts";
import { countedTokens } from "../../serve/context-length.ts";
import { cosine, vectorsOf } from "../../serve/vectors.ts";
import type { Embedding } from "../../text/embedding.ts";
import { sizeOf } from "../../text/encoder/encode-work.ts";
import type { Reranker } from "../../text/reranker.ts";
import type { HttpEnv } from "../frame/env.ts";
import { badRequest } from "../frame/errors.ts";
import { readRequest } from "../frame/json-body.ts";
import type { Generating } from "../frame/serving.ts";
import { type Prefill, prefilled, totalLength } from "../generate/prefill.ts";

export function rerank(serving: Generating, ceiling: Priority) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const request = await readRequest(c, serving, RerankRequest);
    const { query, documents, top_n, return_documents } = request;
    const asked = { ...request, queries: [query] };
    const { model, scores, tokens } = await scored(c, serving, ceiling, asked);
    const results = scores.map((relevance_score, index) => ({
      index,
      relevance_score,
      ...(return_documents && { document: { text: documents[index]! } }),
    }));
    results.sort((a, b) => b.relevance_score - a.relevance_score);
    return c.json({
      id: `rerank-${crypto.randomUUID()}`,
      object: "list",
      model,
      results: results.slice(0, top_n),
      usage: { prompt_tokens: tokens, total_tokens: tokens },
      meta: { tokens: { input_tokens: tokens } },
    } satisfies RerankResponse);
  };
}

export function score(serving: Generating, ceiling: Priority) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const request = await readRequest(c, serving, ScoreRequest);
    const asked = { ...request, queries: request.text_1, documents: request.text_2 };
    const { model, scores, tokens } = await scored(c, serving, ceiling, asked);
    return c.json({
      id: `score-${crypto.randomUUID()}`,
      object: "list",
      created: Math.floor(Date.now() / 1000),
      model,
      data: scores.map((score, index) => ({ object: "score", index, score })),
      usage: { prompt_tokens: tokens, total_tokens: tokens },
    } satisfies ScoreResponse);
  };
}

/** Queries and documents to score: one query per document, or one for all. */
type Pairs = {
  queries: readonly string[];
  documents: readonly string[];
  instruction?: string | undefined;
};

/** Scores of the pairs. `tokens`: number of tokens of all prompts. */
type Scores = { scores: number[]; tokens: number };

async function scored(
  c: Context<HttpEnv>,
  serving: Generating,
  ceiling: Priority,
  { model: name, ...pairs }: Pairs & { model: string },
): Promise<Scores & { model: string }> {
  return await prefilled(c, serving, ceiling, { model: name }, async (prefill) => {
    const { text, name: model } = prefill.model;
    const { reranker, embedding } = text;
    if (!reranker && !embedding) {
      const message = "The model is neither a reranker nor an embedding model.";
      throw badRequest("model", message, "not_a_reranker");
    }
    if (pairs.instruction !== undefined && !reranker?.takesInstruction) {
      throw badRequest(
        "instruction",
        "The model supports no instruction.",
        "unsupported_parameter",
      );
    }
    const scores = reranker
      ? await judged(prefill, pairs, reranker, serving.settings.maxBodySize)
      : await compared(prefill, pairs, embedding!);
    return { model, ...scores };
  });
}

async function judged(
  { model, encode, read }: Prefill,
  { queries, documents, instruction }: Pairs,
  { yes, no }: Reranker,
  maxChars: number,
): Promise<Scores> {
  const maxTokens = countedTokens(model.info);
  const work = { kind: "pairs", queries, documents, instruction, maxTokens } as const;
  // The query is repeated for every document, so the prompts may be far larger than the body.
  if (sizeOf(work) > maxChars) {
    const message = `The query, repeated for each document, exceeds ${maxChars} characters.`;
    throw badRequest("documents", message, "invalid_value");
  }
  const { prompts } = await encode(work);
  const logitsOf = no === undefined ? [yes] : [yes, no];
  const events = await read(prompts, { logitsOf, shareHead: queries.length === 1 });
  const scores = events.map(({ logits }) => {
    const [forYes, forNo = 0] = logits!;
    return 1 / (1 + Math.exp(forNo - forYes!));
  });
  return { scores, tokens: totalLength(prompts) };
}

async function compared(
  { model, encode, read }: Prefill,
  { queries, documents }: Pairs,
  embedding: Embedding,
): Promise<Scores> {
  const texts = [...queries, ...documents];
  const prompts = await textTokens({ prompts: texts }, model, encode);
  const vectors = vectorsOf(await read(prompts, embedding), embedding);
  const ofQueries = vectors.slice(0, queries.length);
  const scores = vectors
    .slice(queries.length)
    .map((vector, i) => cosine(ofQueries[i] ?? ofQueries[0]!, vector));
  return { scores, tokens: totalLength(prompts) };
}
