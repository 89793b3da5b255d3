// The routes of reranking, under every path that clients use.
import {
  RerankRequest,
  RerankResponse,
  ScoreRequest,
  ScoreResponse,
} from "../../api/openai/rerank.ts";
import { generationErrors, type Route } from "../frame/route.ts";
import { rerank, score } from "./rerank.ts";

const query = "What is the capital of France?";
const documents = ["Berlin is the capital of Germany.", "Paris is the capital of France."];

const reranking = {
  method: "post",
  tag: "Text",
  request: RerankRequest,
  response: RerankResponse,
  example: { query, documents },
  errors: generationErrors,
  isLimited: true,
  promptParam: "documents",
  handler: rerank,
} as const;

const scoring = {
  method: "post",
  tag: "Text",
  request: ScoreRequest,
  response: ScoreResponse,
  example: { text_1: query, text_2: documents },
  errors: generationErrors,
  isLimited: true,
  promptParam: "text_2",
  handler: score,
} as const;

export const rerankRoutes: readonly Route[] = [
  {
    ...reranking,
    path: "/v1/rerank",
    summary: "Rank documents by relevance to a query, with a reranker or an embedding model",
    isForBatches: true,
  },
  { ...reranking, path: "/v2/rerank", summary: "Like /v1/rerank, for Cohere's clients" },
  { ...reranking, path: "/rerank", summary: "Like /v1/rerank" },
  {
    ...scoring,
    path: "/v1/score",
    summary: "Score how well pairs of texts match, with a reranker or an embedding model",
    isForBatches: true,
  },
  { ...scoring, path: "/score", summary: "Like /v1/score" },
];
