// The request fields shared by chat and text completions: sampling, stopping, and what to return.
import { z } from "zod";
import { list, optional, stringOrList, withDefault } from "./field.ts";
import { TokenId } from "./prompts.ts";

const StopString = z.string().min(1).max(1024);

export const FinishReason = z
  .enum(["stop", "length", "tool_calls"])
  .describe(
    "stop: the end of the model's turn, or a stop string. length: the limit on tokens, or the end of the context. tool_calls: the model called tools.",
  );
export type FinishReason = z.infer<typeof FinishReason>;

export const ServiceTier = z.enum(["auto", "default", "flex", "priority"]);
export type ServiceTier = z.infer<typeof ServiceTier>;

export const tokenIds = z.array(z.int()).optional().describe("With `return_token_ids`.");

/** Fields that all responses have. */
export const responseFields = {
  id: z.string(),
  created: z.int().describe("Unix time, in seconds."),
  model: z.string(),
  system_fingerprint: z.string(),
  service_tier: ServiceTier.optional().describe(
    "The tier that was served, if the request named one: flex is LOW, default is NORMAL, priority is HIGH.",
  ),
};

export const modelField = withDefault(z.string().max(512), "default").describe(
  "The model's name. `default` is the model that the server was started with.",
);

const tokenBiases = "expected an object of token ids and numbers";

export const SamplingFields = z.object({
  model: modelField,
  max_tokens: optional(z.int().min(1)).describe(
    "The maximum number of tokens to generate. Default: as many as fit the context.",
  ),
  temperature: optional(z.number().min(0).max(2)).describe(
    "The randomness of sampling: 0 always takes the likeliest token.",
  ),
  top_p: optional(z.number().gt(0).max(1)).describe(
    "Nucleus sampling: only the likeliest tokens whose probabilities add up to this.",
  ),
  top_k: optional(z.int().min(-1)).describe(
    "Only this many of the likeliest tokens; -1 and 0 mean all.",
  ),
  min_p: optional(z.number().min(0).max(1)).describe(
    "Only tokens at least this probable, relative to the likeliest one.",
  ),
  frequency_penalty: optional(z.number().min(-2).max(2)).describe(
    "Subtracted from a token's logit for each time it was generated.",
  ),
  presence_penalty: optional(z.number().min(-2).max(2)).describe(
    "Subtracted from a token's logit if it was generated before.",
  ),
  repetition_penalty: optional(z.number().min(0.01).max(10)).describe(
    "Divides the logits of tokens in the prompt or the answer; 1 has no effect.",
  ),
  logit_bias: optional(
    z.preprocess(
      (value, context) => {
        if (typeof value !== "object" || value === null) return value;
        if (Object.keys(value).length > 1024) {
          context.addIssue("expected at most 1024 entries");
          return z.NEVER;
        }
        // Rejects the key __proto__, which zod's records drop before they compare it with the pattern.
        if (!Object.hasOwn(value, "__proto__")) return value;
        context.addIssue(tokenBiases);
        return z.NEVER;
      },
      z.record(z.string().regex(/^(0|[1-9]\d{0,8})$/), z.number().min(-100).max(100), {
        error: tokenBiases,
      }),
    ),
  ).describe("Added to the logits of tokens: an object from token id to -100 .. 100."),
  seed: optional(z.int()).describe(
    "The same request with the same seed samples the same tokens, whatever else is in the batch.",
  ),
  stop: optional(
    stringOrList(StopString, StopString, {
      max: 16,
      error: "expected a string or an array of strings",
    }).transform((stop) => (typeof stop === "string" ? [stop] : stop)),
  ).describe("Stop strings: the answer ends before any of them."),
  stop_token_ids: optional(list(TokenId, 64)).describe("The answer ends at any of these tokens."),
  ignore_eos: withDefault(z.boolean(), false).describe(
    "Continue past the model's end-of-sequence tokens.",
  ),
  min_tokens: withDefault(z.int().min(0), 0).describe("The minimum number of tokens to generate."),
  n: withDefault(z.int().min(1).max(128), 1).describe("The number of answers per prompt."),
  stream: withDefault(z.boolean(), false).describe(
    "Send the answer as server-sent events while it is generated.",
  ),
  stream_options: optional(
    z.object({
      include_usage: withDefault(z.boolean(), false).describe(
        "Send one more event at the end, with the usage and no choices.",
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
    "flex asks for low priority; no value raises the priority above the key's.",
  ),
  user: optional(z.string()).describe("Accepted for compatibility; has no effect."),
  cache_salt: optional(z.string().max(256)).describe(
    "Requests with different salts never share prefix cache entries.",
  ),
  return_token_ids: withDefault(z.boolean(), false).describe(
    "Also return the token ids of the prompt and the answer.",
  ),
});
export type SamplingFields = z.infer<typeof SamplingFields>;

/** Checks rules that involve several fields: `min_tokens`, for example, must not exceed `max_tokens`. */
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
