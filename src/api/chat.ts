// POST /v1/chat/completions
import { z } from "zod";
import { list, optional, refused, stringOrList, withDefault } from "./field.ts";
import { checkSampling, FinishReason, SamplingFields, servedTier } from "./sampling.ts";
import { ResponseFormat, StructuredFields } from "./structured.ts";
import { type Tool, ToolChoice, tools } from "./tools.ts";
import { Usage } from "./usage.ts";

const TextPart = z.object({
  type: z.literal("text", { error: "only text parts are understood" }).describe("Only text."),
  text: z.string().describe("The part's text."),
});

const Content = stringOrList(z.string(), TextPart, {
  max: 4096,
  min: 1,
  error: "expected a string or an array of text parts",
}).describe("A text, or its parts.");

const name = optional(z.string()).describe("Who speaks.");

const ToolCall = z.object({
  id: optional(z.string()).describe("What the result refers to."),
  type: withDefault(z.literal("function"), "function").describe("There is no other."),
  function: z
    .object({
      name: z.string().min(1).describe("The function's name."),
      arguments: z.string().describe("JSON, as the model wrote it."),
    })
    .describe("Which function is called, and how."),
});

const PlainMessage = z.object({
  role: z.enum(["system", "developer", "user"]).describe("Whose message it is."),
  content: Content,
  name,
});

const AssistantMessage = z
  .object({
    role: z.literal("assistant").describe("The model's own message."),
    content: optional(Content).describe("A text, or its parts; none only with `tool_calls`."),
    name,
    refusal: optional(z.string()).describe("Why the model would not answer."),
    reasoning_content: optional(z.string()).describe("What the model thought before it answered."),
    tool_calls: optional(list(ToolCall, 128)).describe("What the model asked for."),
    audio: refused,
    function_call: refused,
  })
  .refine(({ content, tool_calls }) => content !== undefined || tool_calls?.length, {
    path: ["content"],
    message: "expected a string or an array of text parts, as there are no tool_calls",
  });

const ToolMessage = z.object({
  role: z.literal("tool").describe("The result of a call."),
  content: Content,
  tool_call_id: z.string().min(1).describe("Which call this is the result of."),
});

export const ChatMessage = z.discriminatedUnion(
  "role",
  [PlainMessage, AssistantMessage, ToolMessage],
  { error: "expected an object whose role is system, developer, user, assistant or tool" },
);
export type ChatMessage = z.infer<typeof ChatMessage>;

export const chatMessages = list(ChatMessage, 16_384, 1).describe("The conversation so far.");

/** How a chat becomes a prompt. */
export const templateFields = {
  add_generation_prompt: optional(z.boolean()).describe(
    "Whether the prompt ends with the head of the assistant's turn: yes, unless the final message is continued.",
  ),
  continue_final_message: withDefault(z.boolean(), false).describe(
    "The answer continues the last message instead of following it.",
  ),
  chat_template_kwargs: optional(
    z.record(z.string(), z.unknown()).refine((kwargs) => Object.keys(kwargs).length <= 256, {
      message: "expected at most 256 entries",
    }),
  ).describe("More variables for the model's chat template, such as enable_thinking."),
};

const tolerated = "Taken for compatibility; has no effect.";

export const ChatRequest = z
  .object({
    messages: chatMessages,
    ...SamplingFields.shape,
    max_completion_tokens: optional(z.int().min(1)).describe("The newer name of `max_tokens`."),
    logprobs: withDefault(z.boolean(), false).describe("How likely each token of the answer was."),
    top_logprobs: optional(z.int().min(0).max(20)).describe(
      "With `logprobs`: so many of the likeliest tokens at each place too.",
    ),
    ...templateFields,
    reasoning_effort: optional(
      z.enum(["none", "minimal", "low", "medium", "high", "xhigh"]),
    ).describe("How long a model that thinks is to think, if its chat template knows of it."),
    response_format: optional(ResponseFormat),
    ...StructuredFields.shape,
    tools,
    tool_choice: optional(ToolChoice),
    parallel_tool_calls: withDefault(z.boolean(), true).describe(
      "Whether the model may call several functions at once.",
    ),
    modalities: optional(list(z.literal("text", { error: "only text is supported" }), 1)).describe(
      "Only text.",
    ),
    verbosity: optional(z.literal("medium", { error: "only medium is supported" })).describe(
      "Only medium.",
    ),
    store: optional(z.literal(false, { error: "answers are not stored" })).describe("Only false."),
    metadata: optional(z.record(z.string(), z.unknown())).describe(tolerated),
    safety_identifier: optional(z.string()).describe(tolerated),
    prompt_cache_key: optional(z.string()).describe(tolerated),
    prompt_cache_retention: optional(z.string()).describe(tolerated),
    prompt_cache_options: optional(z.record(z.string(), z.unknown())).describe(tolerated),
    audio: refused,
    function_call: refused,
    functions: refused,
    moderation: refused,
    prediction: refused,
    web_search_options: refused,
  })
  .superRefine((request, context) => {
    const { max_tokens, max_completion_tokens = max_tokens } = request;
    checkSampling({ ...request, max_tokens: max_completion_tokens }, context);
    const wrong = (path: string, message: string) =>
      context.addIssue({ code: "custom", path: [path], message });
    if (max_tokens !== undefined && max_tokens !== max_completion_tokens) {
      wrong("max_completion_tokens", "expected the same as max_tokens, or one of the two alone");
    }
    if (request.top_logprobs && !request.logprobs) {
      wrong("top_logprobs", "only allowed when logprobs is true");
    }
    checkTemplate(request, context);
    checkTools(request, context);
  })
  .meta({ id: "ChatRequest" });
export type ChatRequest = z.infer<typeof ChatRequest>;

export function checkTemplate(
  request: { add_generation_prompt?: boolean | undefined; continue_final_message: boolean },
  context: z.RefinementCtx,
): void {
  if (!request.add_generation_prompt || !request.continue_final_message) return;
  context.addIssue({
    code: "custom",
    path: ["continue_final_message"],
    message: "not allowed together with add_generation_prompt",
  });
}

export function checkTools(
  { tools = [], tool_choice }: { tools?: Tool[] | undefined; tool_choice?: ToolChoice | undefined },
  context: z.RefinementCtx,
): void {
  const wrong = (path: string, message: string) =>
    context.addIssue({ code: "custom", path: [path], message });
  const names = tools.map(({ function: { name } }) => name);
  const twice = names.find((name, i) => names.indexOf(name) !== i);
  if (twice !== undefined) wrong("tools", `there are two functions called ${twice}`);
  if (tool_choice === undefined || tool_choice === "none" || tool_choice === "auto") return;
  if (tool_choice === "required") {
    if (names.length === 0) wrong("tool_choice", "only allowed when there are tools");
  } else if (!names.includes(tool_choice.function.name)) {
    wrong("tool_choice", "there is no such function among the tools");
  }
}

const TopLogprob = z.object({
  token: z.string(),
  logprob: z.number(),
  bytes: z.array(z.int()).nullable().describe("The token's UTF-8 bytes."),
});

export const ChatLogprobs = z.object({
  content: z.array(TopLogprob.extend({ top_logprobs: z.array(TopLogprob) })).nullable(),
  refusal: z.null(),
});
export type ChatLogprobs = z.infer<typeof ChatLogprobs>;

const tokenIds = z.array(z.int()).optional().describe("With `return_token_ids`.");

const AnswerCall = z.object({
  id: z.string(),
  type: z.literal("function"),
  function: z.object({ name: z.string(), arguments: z.string().describe("A JSON object.") }),
});

const CallDelta = z.object({
  index: z.int().describe("Which of the calls."),
  id: z.string().optional().describe("In a call's first event only, as its name."),
  type: z.literal("function").optional(),
  function: z.object({
    name: z.string().optional(),
    arguments: z.string().describe("To be joined with those before."),
  }),
});

const ChatChoice = z.object({
  index: z.int(),
  message: z.object({
    role: z.literal("assistant"),
    content: z.string().nullable().describe("Null where there is nothing but calls."),
    reasoning_content: z.string().optional().describe("What the model thought before."),
    tool_calls: z.array(AnswerCall).optional(),
    refusal: z.null(),
  }),
  logprobs: ChatLogprobs.nullable(),
  finish_reason: FinishReason,
  token_ids: tokenIds,
});

const answerFields = {
  id: z.string(),
  created: z.int().describe("Unix time, in seconds."),
  model: z.string(),
  system_fingerprint: z.string(),
  service_tier: servedTier,
  prompt_token_ids: tokenIds,
};

export const ChatResponse = z
  .object({
    ...answerFields,
    object: z.literal("chat.completion"),
    choices: z.array(ChatChoice),
    usage: Usage,
  })
  .meta({ id: "ChatResponse" });
export type ChatResponse = z.infer<typeof ChatResponse>;

export const ChatChunk = z
  .object({
    ...answerFields,
    object: z.literal("chat.completion.chunk"),
    choices: z
      .array(
        z.object({
          index: z.int(),
          delta: z.object({
            role: z.literal("assistant").optional().describe("In the first event only."),
            content: z.string().optional(),
            reasoning_content: z.string().optional(),
            tool_calls: z.array(CallDelta).optional(),
            refusal: z.null().optional(),
          }),
          logprobs: ChatLogprobs.nullable(),
          finish_reason: FinishReason.nullable().describe("Null until the answer has ended."),
          token_ids: tokenIds,
        }),
      )
      .describe("Empty in the event with the usage."),
    usage: Usage.nullish(),
  })
  .meta({ id: "ChatChunk" });
export type ChatChunk = z.infer<typeof ChatChunk>;
