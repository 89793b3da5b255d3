// POST /v1/completions
import { z } from "zod";
import { optional, refused, withDefault } from "../field.ts";
import { prompts } from "../prompts.ts";
import {
  checkSampling,
  FinishReason,
  responseFields,
  SamplingFields,
  tokenIds,
} from "../sampling.ts";
import { ResponseFormat, StructuredFields } from "../structured.ts";
import { Usage } from "./usage.ts";

export const CompletionRequest = z
  .object({
    prompt: prompts(128).describe(
      "A text or token ids, or up to 128 of them, each with `n` choices.",
    ),
    ...SamplingFields.shape,
    response_format: optional(ResponseFormat),
    ...StructuredFields.shape,
    max_tokens: optional(z.int().min(0)).describe(
      "The maximum number of tokens to generate; 0 only with `echo`. Default: `--max-tokens`, or 16.",
    ),
    echo: withDefault(z.boolean(), false).describe("Whether the answer starts with the prompt."),
    logprobs: optional(z.int().min(0).max(20)).describe(
      "Return the log-probability of each token, and of this many of the likeliest tokens at each position.",
    ),
    best_of: optional(z.int()).describe("Must be equal to `n`."),
    suffix: z
      .preprocess((value) => (value === "" ? undefined : value), refused)
      .describe("Not supported: must be null or empty."),
  })
  .superRefine((request, context) => {
    checkSampling(request, context);
    const wrong = (path: string, message: string) =>
      context.addIssue({ code: "custom", path: [path], message });
    if (request.max_tokens === 0 && !request.echo) {
      wrong("max_tokens", "expected at least 1, as echo is not true");
    }
    if (request.best_of !== undefined && request.best_of !== request.n) {
      wrong("best_of", "expected the same as n");
    }
  })
  .meta({ id: "CompletionRequest" });
export type CompletionRequest = z.infer<typeof CompletionRequest>;

export const CompletionLogprobs = z.object({
  tokens: z.array(z.string()),
  token_logprobs: z.array(z.number().nullable()).describe("Null for the prompt's first token."),
  top_logprobs: z.array(z.record(z.string(), z.number()).nullable()).nullable(),
  text_offset: z.array(z.int()).describe("Where each token starts in the text, in characters."),
});
export type CompletionLogprobs = z.infer<typeof CompletionLogprobs>;

const CompletionChoice = z.object({
  index: z.int().describe("Choice c of prompt p has the index p * n + c."),
  text: z.string(),
  logprobs: CompletionLogprobs.nullable(),
  finish_reason: FinishReason,
  token_ids: tokenIds,
  prompt_token_ids: tokenIds,
});

const answerFields = { ...responseFields, object: z.literal("text_completion") };

export const CompletionResponse = z
  .object({ ...answerFields, choices: z.array(CompletionChoice), usage: Usage })
  .meta({ id: "CompletionResponse" });
export type CompletionResponse = z.infer<typeof CompletionResponse>;

export const CompletionChunk = z
  .object({
    ...answerFields,
    choices: z
      .array(CompletionChoice.extend({ finish_reason: FinishReason.nullable() }))
      .describe("Empty in the event with the usage."),
    usage: Usage.nullish(),
  })
  .meta({ id: "CompletionChunk" });
export type CompletionChunk = z.infer<typeof CompletionChunk>;
