// POST /v1/chat/completions
import { z } from "zod";
import { anyObject, list, optional, refused, stringOrList, withDefault } from "../field.ts";
import {
  checkSampling,
  FinishReason,
  responseFields,
  SamplingFields,
  tokenIds,
} from "../sampling.ts";
import { ResponseFormat, StructuredFields } from "../structured.ts";
import { type Tool, ToolChoice, tools } from "../tools.ts";
import { Usage } from "./usage.ts";

const TextPart = z.object({
  type: z.literal("text", { error: "only text parts are supported" }).describe("Only text."),
  text: z.string().describe("The part's text."),
});

const Content = stringOrList(z.string(), TextPart, {
  max: 4096,
  min: 1,
  error: "expected a string or an array of text parts",
}).describe("A text, or its parts.");

const name = optional(z.string()).describe("The name of the speaker.");

const ToolCall = z.object({
  id: optional(z.string()).describe("The id that the result refers to."),
  type: withDefault(z.literal("function"), "function").describe("Always `function`."),
  function: z
    .object({
      name: z.string().min(1).describe("The function's name."),
      arguments: z.string().describe("JSON, as the model wrote it."),
    })
    .describe("The function and its arguments."),
});

const PlainMessage = z.object({
  role: z.enum(["system", "developer", "user"]).describe("The role of the message's author."),
  content: Content,
  name,
});

const AssistantMessage = z
  .object({
    role: z.literal("assistant").describe("The model's own message."),
    content: optional(Content).describe(
      "A text, or its parts; may be absent only with `tool_calls`.",
    ),
    name,
    refusal: optional(z.string()).describe("Why the model refused to answer."),
    reasoning_content: optional(z.string()).describe("The model's reasoning before the answer."),
    reasoning: optional(z.string()).describe("Another name of `reasoning_content`."),
    tool_calls: optional(list(ToolCall, 128)).describe("The calls that the model made."),
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
  tool_call_id: z.string().min(1).describe("The id of the call that this is the result of."),
});

export const ChatMessage = z.discriminatedUnion(
  "role",
  [PlainMessage, AssistantMessage, ToolMessage],
  { error: "expected an object whose role is system, developer, user, assistant or tool" },
);
export type ChatMessage = z.infer<typeof ChatMessage>;

export const chatMessages = list(ChatMessage, 16_384, 1).describe("The conversation so far.");

/** Options of the chat template. */
export const templateFields = {
  add_generation_prompt: optional(z.boolean()).describe(
    "Whether the prompt ends with the header of the assistant's turn. Default: true, unless the final message is continued.",
  ),
  continue_final_message: withDefault(z.boolean(), false).describe(
    "The answer continues the last message instead of following it.",
  ),
  chat_template_kwargs: optional(
    anyObject.refine((kwargs) => Object.keys(kwargs).length <= 256, {
      message: "expected at most 256 entries",
    }),
  ).describe("More variables for the model's chat template, such as enable_thinking."),
};

const tolerated = "Accepted for compatibility; has no effect.";

export const ChatRequest = z
  .object({
    messages: chatMessages,
    ...SamplingFields.shape,
    max_completion_tokens: optional(z.int().min(1)).describe("The newer name of `max_tokens`."),
    logprobs: withDefault(z.boolean(), false).describe(
      "Return the log-probability of each token of the answer.",
    ),
    top_logprobs: optional(z.int().min(0).max(20)).describe(
      "With `logprobs`: also return this many of the likeliest tokens at each position.",
    ),
    ...templateFields,
    reasoning_effort: optional(
      z.enum(["none", "minimal", "low", "medium", "high", "xhigh"]),
    ).describe("How much a reasoning model should think, if its chat template supports it."),
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
    metadata: optional(anyObject).describe(tolerated),
    safety_identifier: optional(z.string()).describe(tolerated),
    prompt_cache_key: optional(z.string()).describe(tolerated),
    prompt_cache_retention: optional(z.string()).describe(tolerated),
    prompt_cache_options: optional(anyObject).describe(tolerated),
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
    if (names.length === 0) wrong("tool_choice", "only allowed with tools");
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

const AnswerCall = z.object({
  id: z.string(),
  type: z.literal("function"),
  function: z.object({
    name: z.string(),
    arguments: z.string().describe("A JSON object; incomplete if the token limit cut it off."),
  }),
});

const CallDelta = z.object({
  index: z.int().describe("The index of the call."),
  id: z.string().optional().describe("Only in a call's first event, like its name."),
  type: z.literal("function").optional(),
  function: z.object({
    name: z.string().optional(),
    arguments: z.string().describe("To be appended to the arguments so far."),
  }),
});

const ChatChoice = z.object({
  index: z.int(),
  message: z.object({
    role: z.literal("assistant"),
    content: z.string().nullable().describe("Null if there are only calls."),
    reasoning_content: z.string().optional().describe("The model's reasoning before the answer."),
    tool_calls: z.array(AnswerCall).optional(),
    refusal: z.null(),
  }),
  logprobs: ChatLogprobs.nullable(),
  finish_reason: FinishReason,
  token_ids: tokenIds,
});

const answerFields = { ...responseFields, prompt_token_ids: tokenIds };

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
            role: z.literal("assistant").optional().describe("Only in the first event."),
            content: z.string().optional(),
            reasoning_content: z.string().optional(),
            tool_calls: z.array(CallDelta).optional(),
            refusal: z.null().optional(),
          }),
          logprobs: ChatLogprobs.nullable(),
          finish_reason: FinishReason.nullable().describe("Null until the answer ends."),
          token_ids: tokenIds,
        }),
      )
      .describe("Empty in the event with the usage."),
    usage: Usage.nullish(),
  })
  .meta({ id: "ChatChunk" });
export type ChatChunk = z.infer<typeof ChatChunk>;
