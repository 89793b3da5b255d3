// POST /v1/rerank, compatible with Jina and Cohere, and POST /v1/score, compatible with vLLM.
import { z } from "zod";
import { list, optional, refused, withDefault } from "../field.ts";
import { texts } from "../prompts.ts";
import { modelField } from "../sampling.ts";

const MAX_TEXTS = 2048;

const Text = z.string().min(1);

/** Request fields of both /v1/rerank and /v1/score. */
const scoreFields = {
  model: modelField,
  instruction: optional(z.string().min(1)).describe(
    "What makes a document relevant, for rerankers that take an instruction, such as Qwen3-Reranker. Default: the model's own.",
  ),
  use_activation: optional(z.literal(true, { error: "raw logits are not supported" })).describe(
    "Only true: a reranker's scores are between 0 and 1.",
  ),
  user: optional(z.string()).describe("Accepted for compatibility; has no effect."),
  truncate_prompt_tokens: refused,
  mm_processor_kwargs: refused,
  priority: refused,
};

const Usage = z.object({ prompt_tokens: z.int(), total_tokens: z.int() });

const Document = z
  .union([Text, z.object({ text: Text.describe("The document's text.") })], {
    error: "expected a string or an object with a text",
  })
  .transform((document) => (typeof document === "string" ? document : document.text));

export const RerankRequest = z
  .object({
    query: Text.describe("What the documents are compared with."),
    documents: list(Document, MAX_TEXTS, 1).describe(
      "Up to 2048 documents, each a string or an object with a `text`.",
    ),
    top_n: optional(z.int().min(1)).describe("Return only this many of the most relevant."),
    return_documents: withDefault(z.boolean(), true).describe(
      "Whether the results have the documents' texts.",
    ),
    ...scoreFields,
    max_tokens_per_doc: refused,
    max_chunks_per_doc: refused,
    rank_fields: refused,
  })
  .meta({ id: "RerankRequest" });
export type RerankRequest = z.infer<typeof RerankRequest>;

export const RerankResponse = z
  .object({
    id: z.string(),
    object: z.literal("list"),
    model: z.string(),
    results: z
      .array(
        z.object({
          index: z.int().describe("Which of the documents it is."),
          relevance_score: z.number(),
          document: z.object({ text: z.string() }).optional(),
        }),
      )
      .describe("The most relevant first."),
    usage: Usage,
    meta: z
      .object({ tokens: z.object({ input_tokens: z.int() }) })
      .describe("The usage, where Cohere's clients look for it."),
  })
  .meta({ id: "RerankResponse" });
export type RerankResponse = z.infer<typeof RerankResponse>;

export const ScoreRequest = z
  .object({
    text_1: texts(MAX_TEXTS).describe("A text for all of `text_2`, or one for each of them."),
    text_2: texts(MAX_TEXTS).describe("A text, or up to 2048 of them."),
    ...scoreFields,
  })
  .superRefine(({ text_1, text_2 }, context) => {
    if (text_1.length === 1 || text_1.length === text_2.length) return;
    const message = "expected one text, or as many as text_2 has";
    context.addIssue({ code: "custom", path: ["text_1"], message });
  })
  .meta({ id: "ScoreRequest" });
export type ScoreRequest = z.infer<typeof ScoreRequest>;

export const ScoreResponse = z
  .object({
    id: z.string(),
    object: z.literal("list"),
    created: z.int().describe("Unix time, in seconds."),
    model: z.string(),
    data: z.array(z.object({ object: z.literal("score"), index: z.int(), score: z.number() })),
    usage: Usage,
  })
  .meta({ id: "ScoreResponse" });
export type ScoreResponse = z.infer<typeof ScoreResponse>;
