// Ollama's POST /api/chat and /api/generate
import { z } from "zod";
import { anyObject, list, optional, withDefault } from "../field.ts";
import { tools } from "../tools.ts";
import { keepAlive, ollamaModel, options } from "./options.ts";

const think = optional(
  z.union([
    z.boolean(),
    z.enum(["low", "medium", "high", "max"], {
      error: "expected true, false, low, medium, high or max",
    }),
  ]),
).describe("Whether, or how much, the model thinks, if its chat template supports it.");

const format = optional(
  z.union([z.enum(["", "json"], { error: "expected json or a JSON schema" }), anyObject]),
).describe("Constrains the answer: json for any object, or a JSON schema.");

const images = optional(z.array(z.unknown()).max(0, "images are not supported")).describe(
  "Not supported: must be empty.",
);

const commonFields = {
  model: ollamaModel,
  format,
  think,
  options,
  keep_alive: keepAlive,
  stream: withDefault(z.boolean(), true).describe(
    "Send the answer as lines of JSON while it is generated.",
  ),
  logprobs: withDefault(z.boolean(), false).describe("Return the log-probability of each token."),
  top_logprobs: withDefault(z.int().min(0).max(20), 0).describe(
    "Also return this many of the likeliest tokens at each position.",
  ),
  truncate: optional(z.literal(false, { error: "prompts are not truncated" })).describe(
    "Only false: a prompt that does not fit the context is refused.",
  ),
  shift: optional(z.literal(false, { error: "the context is not shifted" })).describe(
    "Only false: an answer ends at the end of the context.",
  ),
};

const Call = z.object({
  id: optional(z.string().max(256)).describe("The call's id."),
  function: z
    .object({
      name: z.string().min(1).max(256).describe("The function's name."),
      arguments: anyObject.describe("Its arguments."),
    })
    .describe("The function that was called."),
});

const Message = z.object({
  role: z
    .preprocess(
      (role) => (typeof role === "string" ? role.toLowerCase() : role),
      z.enum(["system", "user", "assistant", "tool"]),
    )
    .describe("The role of the author."),
  content: withDefault(z.string(), "").describe("The text."),
  thinking: optional(z.string()).describe("The assistant's reasoning before."),
  tool_calls: optional(list(Call, 128)).describe("The calls that the assistant made."),
  tool_name: optional(z.string().max(256)).describe("For a result: the function's name."),
  tool_call_id: optional(z.string().max(256)).describe(
    "For a result: the call's id. By default, results are matched to calls in order.",
  ),
  images,
});
export type OllamaMessage = z.infer<typeof Message>;

export const OllamaChatRequest = z
  .object({
    messages: withDefaultList(list(Message, 16_384)).describe(
      "The conversation so far. Without any the model is only loaded, or unloaded if keep_alive is 0.",
    ),
    tools,
    ...commonFields,
  })
  .meta({ id: "OllamaChatRequest" });
export type OllamaChatRequest = z.infer<typeof OllamaChatRequest>;

/** Replaces null, or an absent field, by an empty list. */
function withDefaultList<T extends z.ZodType>(field: T) {
  return z.preprocess((value) => value ?? [], field);
}

export const OllamaGenerateRequest = z
  .object({
    prompt: withDefault(z.string(), "").describe(
      "The user's message. If empty, the model is only loaded, or unloaded if keep_alive is 0.",
    ),
    system: withDefault(z.string(), "").describe("The system prompt."),
    raw: withDefault(z.boolean(), false).describe(
      "Continue the prompt as it is, without the model's chat template. Control tokens written out in it are tokens.",
    ),
    suffix: unsupported("texts cannot be filled in"),
    template: unsupported("the model's own chat template is used"),
    context: optional(
      z.array(z.unknown()).max(0, "use /api/chat to go on with a conversation"),
    ).describe("Not supported: must be empty."),
    images,
    ...commonFields,
  })
  .refine(({ raw, system }) => !raw || system === "", {
    path: ["system"],
    message: "not allowed together with raw",
  })
  .meta({ id: "OllamaGenerateRequest" });
export type OllamaGenerateRequest = z.infer<typeof OllamaGenerateRequest>;

/** Returns the schema of an unsupported text field, which must be empty. */
function unsupported(why: string) {
  return optional(z.string().max(0, `not supported: ${why}`)).describe(
    "Not supported: must be empty.",
  );
}

const TokenLogprob = z.object({
  token: z.string(),
  logprob: z.number(),
  bytes: z.array(z.int()).nullable(),
});

const WireCall = z.object({
  id: z.string(),
  function: z.object({
    index: z.int(),
    name: z.string(),
    arguments: z.record(z.string(), z.unknown()),
  }),
});
export type OllamaCall = z.infer<typeof WireCall>;

/** Fields of every line of a response. */
const lineFields = {
  model: z.string(),
  created_at: z.string(),
  done: z.boolean().describe("Whether it is the last line."),
  done_reason: z
    .enum(["stop", "length", "load", "unload"])
    .optional()
    .describe(
      "stop: the end of the model's turn, calls, or a stop string. length: a limit on tokens.",
    ),
  logprobs: z.array(TokenLogprob.extend({ top_logprobs: z.array(TokenLogprob) })).optional(),
  total_duration: z.int().optional().describe("All durations are in nanoseconds."),
  load_duration: z.int().optional().describe("Until the engine had the prompt."),
  prompt_eval_count: z.int().optional().describe("The prompt's tokens, cached ones too."),
  prompt_eval_duration: z.int().optional().describe("From the queue to the first token."),
  eval_count: z.int().optional().describe("Generated tokens."),
  eval_duration: z.int().optional().describe("From the first token to the last."),
};

export const OllamaChatResponse = z
  .object({
    ...lineFields,
    message: z.object({
      role: z.literal("assistant"),
      content: z.string(),
      thinking: z.string().optional(),
      tool_calls: z.array(WireCall).optional(),
    }),
  })
  .meta({ id: "OllamaChatResponse" });
export type OllamaChatResponse = z.infer<typeof OllamaChatResponse>;

export const OllamaGenerateResponse = z
  .object({ ...lineFields, response: z.string(), thinking: z.string().optional() })
  .meta({ id: "OllamaGenerateResponse" });
export type OllamaGenerateResponse = z.infer<typeof OllamaGenerateResponse>;

export const OllamaError = z
  .object({ error: z.string().describe("The problem, in one line.") })
  .meta({ id: "OllamaError" });
export type OllamaError = z.infer<typeof OllamaError>;
