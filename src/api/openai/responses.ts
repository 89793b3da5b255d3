// OpenAI's POST /v1/responses, and the endpoints of stored responses.
import { z } from "zod";
import { anyObject, list, optional, refused, stringOrList, withDefault } from "../field.ts";
import { modelField, ServiceTier } from "../sampling.ts";
import { JsonSchema } from "../structured.ts";
import { ContentPart, InputItem, OutputItem } from "./response-items.ts";
import { ResponseTool, ResponseToolChoice } from "./response-tools.ts";

const tolerated = "Accepted for compatibility; has no effect.";

const TextFormat = z
  .discriminatedUnion(
    "type",
    [
      z.object({ type: z.literal("text").describe("Any text.") }),
      z.object({ type: z.literal("json_object").describe("A JSON object.") }),
      z.object({
        type: z.literal("json_schema").describe("A JSON document that matches a schema."),
        name: z
          .string()
          .regex(/^[a-zA-Z0-9_-]{1,64}$/, "expected up to 64 letters, digits, _ and -")
          .describe("The schema's name; has no effect."),
        schema: JsonSchema.describe("The schema."),
        description: optional(z.string()).describe("Has no effect."),
        strict: optional(z.boolean()).describe("Has no effect: a schema is always enforced."),
      }),
    ],
    { error: "expected an object whose type is text, json_object or json_schema" },
  )
  .describe("The format that the answer is constrained to.");

const includable = [
  "reasoning.encrypted_content",
  "file_search_call.results",
  "web_search_call.results",
  "web_search_call.action.sources",
  "message.input_image.image_url",
  "computer_call_output.output.image_url",
  "code_interpreter_call.outputs",
] as const;

export const ResponsesRequest = z
  .object({
    model: modelField,
    input: stringOrList(z.string(), InputItem, {
      max: 16_384,
      error: "expected a string or an array of items",
    }).describe("A text of the user, or the conversation so far as items."),
    instructions: optional(z.string()).describe(
      "A message of the developer before all others. Not carried over to the next response.",
    ),
    previous_response_id: optional(z.string().max(128)).describe(
      "A stored response whose conversation is continued.",
    ),
    store: withDefault(z.boolean(), true).describe(
      "Whether the response is stored, to be retrieved or continued.",
    ),
    max_output_tokens: optional(z.int().min(1)).describe(
      "The maximum number of tokens to generate. Default: as many as fit the context.",
    ),
    temperature: optional(z.number().min(0).max(2)).describe(
      "The randomness of sampling: 0 always takes the likeliest token.",
    ),
    top_p: optional(z.number().gt(0).max(1)).describe(
      "Nucleus sampling: only the likeliest tokens whose probabilities add up to this.",
    ),
    top_logprobs: optional(
      z.literal(0, { error: "only /v1/chat/completions returns log-probabilities" }),
    ).describe("Only 0."),
    tools: optional(list(ResponseTool, 1024)).describe("Tools that the model may call."),
    tool_choice: optional(ResponseToolChoice),
    parallel_tool_calls: withDefault(z.boolean(), true).describe(
      "Whether the model may call several tools at once.",
    ),
    reasoning: optional(
      z.object({
        effort: optional(
          z.enum(["none", "minimal", "low", "medium", "high", "xhigh", "max"]),
        ).describe("How much a reasoning model should think, if its chat template supports it."),
        summary: optional(z.enum(["auto", "concise", "detailed"])).describe(tolerated),
        generate_summary: optional(z.enum(["auto", "concise", "detailed"])).describe(tolerated),
      }),
    ).describe("How the model reasons."),
    text: optional(
      z.object({
        format: optional(TextFormat),
        verbosity: optional(z.enum(["low", "medium", "high"])).describe(tolerated),
      }),
    ).describe("How the answer's text should be."),
    include: optional(
      list(
        z.enum(includable, { error: `expected one of ${includable.join(", ")}` }),
        includable.length,
      ),
    ).describe("More data of the response: reasoning.encrypted_content."),
    stream: withDefault(z.boolean(), false).describe(
      "Send the response as server-sent events while it is generated.",
    ),
    stream_options: optional(
      z.object({
        include_obfuscation: optional(
          z.literal(false, { error: "obfuscation is not supported" }),
        ).describe("Only false."),
      }),
    ).describe("Only with `stream`."),
    service_tier: optional(ServiceTier).describe(
      "flex asks for low priority; no value raises the priority above the key's.",
    ),
    truncation: optional(
      z.literal("disabled", { error: "inputs are not truncated: only disabled is supported" }),
    ).describe("Only disabled."),
    background: optional(
      z.literal(false, { error: "responses in the background are not supported" }),
    ).describe("Only false."),
    metadata: optional(
      z
        .record(z.string().max(64), z.string().max(512))
        .refine((metadata) => Object.keys(metadata).length <= 16, {
          message: "expected at most 16 entries",
        }),
    ).describe("Returned with the response."),
    max_tool_calls: optional(z.int()).describe(tolerated),
    user: optional(z.string()).describe(tolerated),
    safety_identifier: optional(z.string()).describe(tolerated),
    prompt_cache_key: optional(z.string()).describe(tolerated),
    prompt_cache_retention: optional(z.string()).describe(tolerated),
    prompt_cache_options: optional(anyObject).describe(tolerated),
    conversation: refused,
    prompt: refused,
    context_management: refused,
    moderation: refused,
  })
  .meta({ id: "ResponsesRequest" });
export type ResponsesRequest = z.infer<typeof ResponsesRequest>;

const ResponseUsage = z.object({
  input_tokens: z.int(),
  input_tokens_details: z.object({
    cached_tokens: z.int().describe("Prompt tokens found in the prefix cache."),
  }),
  output_tokens: z.int(),
  output_tokens_details: z.object({
    reasoning_tokens: z.int().describe("Tokens of the reasoning."),
  }),
  total_tokens: z.int(),
});

export const ResponseObject = z
  .object({
    id: z.string(),
    object: z.literal("response"),
    created_at: z.int().describe("Unix time, in seconds."),
    completed_at: z.int().nullable(),
    status: z.enum(["in_progress", "completed", "incomplete", "failed"]),
    error: z.object({ code: z.string(), message: z.string() }).nullable(),
    incomplete_details: z.object({ reason: z.literal("max_output_tokens") }).nullable(),
    model: z.string(),
    output: z.array(OutputItem),
    usage: ResponseUsage.nullable(),
    instructions: z.string().nullable(),
    previous_response_id: z.string().nullable(),
    store: z.boolean(),
    background: z.literal(false),
    max_output_tokens: z.int().nullable(),
    temperature: z.number().nullable(),
    top_p: z.number().nullable(),
    top_logprobs: z.int().nullable(),
    tools: z.array(z.unknown()),
    tool_choice: z.unknown(),
    parallel_tool_calls: z.boolean(),
    reasoning: z.unknown(),
    text: z.unknown(),
    truncation: z.literal("disabled"),
    service_tier: ServiceTier.nullable(),
    metadata: z.record(z.string(), z.string()),
    user: z.string().nullable(),
  })
  .meta({ id: "ResponseObject" });
export type ResponseObject = z.infer<typeof ResponseObject>;

const sequence_number = z.int().describe("Counts the events of the stream.");
const place = {
  sequence_number,
  output_index: z.int().describe("The item's place in the output."),
};
const inItem = { ...place, item_id: z.string() };
const inPart = { ...inItem, content_index: z.int() };
const logprobs = z.array(z.never()).describe("Always empty.");

export const ResponseEvent = z
  .discriminatedUnion("type", [
    z.object({
      type: z.enum([
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
      ]),
      sequence_number,
      response: ResponseObject,
    }),
    z.object({
      type: z.enum(["response.output_item.added", "response.output_item.done"]),
      ...place,
      item: OutputItem,
    }),
    z.object({
      type: z.enum(["response.content_part.added", "response.content_part.done"]),
      ...inPart,
      part: ContentPart,
    }),
    z.object({
      type: z.literal("response.output_text.delta"),
      ...inPart,
      delta: z.string(),
      logprobs,
    }),
    z.object({
      type: z.literal("response.output_text.done"),
      ...inPart,
      text: z.string(),
      logprobs,
    }),
    z.object({ type: z.literal("response.reasoning_text.delta"), ...inPart, delta: z.string() }),
    z.object({ type: z.literal("response.reasoning_text.done"), ...inPart, text: z.string() }),
    z.object({
      type: z.enum([
        "response.function_call_arguments.delta",
        "response.custom_tool_call_input.delta",
      ]),
      ...inItem,
      delta: z.string(),
    }),
    z.object({
      type: z.literal("response.function_call_arguments.done"),
      ...inItem,
      name: z.string(),
      arguments: z.string(),
    }),
    z.object({
      type: z.literal("response.custom_tool_call_input.done"),
      ...inItem,
      input: z.string(),
    }),
  ])
  .meta({ id: "ResponseEvent" });
export type ResponseEvent = z.infer<typeof ResponseEvent>;

export const ResponseDeleted = z
  .object({ id: z.string(), object: z.literal("response"), deleted: z.literal(true) })
  .meta({ id: "ResponseDeleted" });

export const InputItemList = z
  .object({
    object: z.literal("list"),
    data: z.array(z.unknown()),
    first_id: z.string().nullable(),
    last_id: z.string().nullable(),
    has_more: z.boolean(),
  })
  .meta({ id: "InputItemList" });
