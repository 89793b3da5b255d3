// What chat and text completions have in common: how tokens are chosen, when to stop, what to send back.
import { z } from "zod";
import { list, optional, stringOrList, withDefault } from "./field.ts";
import { TokenId } from "./prompts.ts";

const StopString = z.string().min(1).max(1024);

export const FinishReason = z
  .enum(["stop", "length", "tool_calls"])
  .describe("stop: a natural end or a stop string. length: no more tokens were asked for, or fit.");
export type FinishReason = z.infer<typeof FinishReason>;

export const ServiceTier = z.enum(["auto", "default", "flex", "priority"]);
export type ServiceTier = z.infer<typeof ServiceTier>;

/** In an answer. */
export const servedTier = ServiceTier.optional().describe(
  "Where one was asked for, the one that was given: flex is LOW, default NORMAL, priority HIGH.",
);

export const modelField = withDefault(z.string().max(512), "default").describe(
  "The model's name. `default` is the one that the server was started with.",
);

export const SamplingFields = z.object({
  model: modelField,
  max_tokens: optional(z.int().min(1)).describe(
    "So many tokens are generated at most; without it, as many as fit the context.",
  ),
  temperature: optional(z.number().min(0).max(2)).describe(
    "How freely tokens are chosen: 0 always takes the likeliest.",
  ),
  top_p: optional(z.number().gt(0).max(1)).describe(
    "Only the likeliest tokens that together have this probability.",
  ),
  top_k: optional(z.int().min(-1)).describe(
    "Only so many of the likeliest tokens; -1 and 0 mean all.",
  ),
  min_p: optional(z.number().min(0).max(1)).describe(
    "Only tokens at least this probable, as a part of the likeliest one's probability.",
  ),
  frequency_penalty: optional(z.number().min(-2).max(2)).describe(
    "Taken from a token's score for each time that it was generated.",
  ),
  presence_penalty: optional(z.number().min(-2).max(2)).describe(
    "Taken from a token's score if it was generated before.",
  ),
  repetition_penalty: optional(z.number().min(0.01).max(10)).describe(
    "Divides the score of tokens that stand in the prompt or the answer; 1 does nothing.",
  ),
  logit_bias: optional(
    z.preprocess(
      (value, context) => {
        if (typeof value !== "object" || value === null) return value;
        if (Object.keys(value).length <= 1024) return value;
        context.addIssue("expected at most 1024 entries");
        return z.NEVER;
      },
      z.record(z.string().regex(/^(0|[1-9]\d{0,8})$/), z.number().min(-100).max(100), {
        error: "expected an object of token ids and numbers",
      }),
    ),
  ).describe("Added to the scores of tokens: an object from token id to -100 .. 100."),
  seed: optional(z.int()).describe(
    "The same request with the same seed chooses the same tokens, whoever else is served.",
  ),
  stop: optional(
    stringOrList(StopString, StopString, {
      max: 16,
      error: "expected a string or an array of strings",
    }).transform((stop) => (typeof stop === "string" ? [stop] : stop)),
  ).describe("The answer ends before any of these texts."),
  stop_token_ids: optional(list(TokenId, 64)).describe("The answer ends at any of these tokens."),
  ignore_eos: withDefault(z.boolean(), false).describe("Go on past the model's own end tokens."),
  min_tokens: withDefault(z.int().min(0), 0).describe(
    "The answer does not end before it has so many tokens.",
  ),
  n: withDefault(z.int().min(1).max(128), 1).describe("How many answers to a prompt."),
  stream: withDefault(z.boolean(), false).describe("Send the answer as events, as it is made."),
  stream_options: optional(
    z.object({
      include_usage: withDefault(z.boolean(), false).describe(
        "One more event before the last, with the usage and no choices.",
      ),
      include_obfuscation: optional(
        z.literal(false, { error: "obfuscation is not supported" }),
      ).describe("Only false."),
      continuous_usage_stats: optional(
        z.literal(false, { error: "usage in every event is not supported" }),
      ).describe("Only false."),
    }),
  ).describe("Only with `stream`."),
  service_tier: optional(ServiceTier).describe(
    "flex asks for low priority; nothing gives more than the API key does.",
  ),
  user: optional(z.string()).describe("Taken for compatibility; has no effect."),
  cache_salt: optional(z.string().max(256)).describe(
    "Requests with different salts never share what was computed of their prompts.",
  ),
  return_token_ids: withDefault(z.boolean(), false).describe(
    "Send the ids of the prompt's and the answer's tokens too.",
  ),
});
export type SamplingFields = z.infer<typeof SamplingFields>;

/** What no field can tell by itself. */
export function checkSampling(request: SamplingFields, context: z.RefinementCtx): void {
  const { stream, stream_options, min_tokens, max_tokens } = request;
  if (stream_options !== undefined && !stream) {
    context.addIssue({
      code: "custom",
      path: ["stream_options"],
      message: "only allowed when stream is true",
    });
  }
  if (max_tokens !== undefined && min_tokens > max_tokens) {
    context.addIssue({
      code: "custom",
      path: ["min_tokens"],
      message: "expected no more than max_tokens",
    });
  }
}
