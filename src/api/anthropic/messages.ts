// Anthropic's POST /v1/messages and /v1/messages/count_tokens
import { z } from "zod";
import { anyObject, list, optional, refused, withDefault } from "../field.ts";
import { modelField } from "../sampling.ts";
import { type AnthropicMessage, anthropicMessages, cacheControl, systemPrompt } from "./content.ts";

const tolerated = "Accepted for compatibility; has no effect.";

const ToolName = z
  .string()
  .regex(/^[a-zA-Z0-9_-]{1,128}$/, "expected up to 128 letters, digits, _ and -");

const AnthropicTool = z.object({
  type: optional(
    z.literal("custom", { error: "only tools of type custom are supported" }),
  ).describe("Only custom: the server has no tools of its own."),
  name: ToolName.describe("The tool's name."),
  description: optional(z.string()).describe("What the tool does, for the model."),
  input_schema: anyObject.describe("A JSON schema of the arguments, an object."),
  strict: withDefault(z.boolean(), false).describe(
    "Reject a schema that cannot be enforced completely, instead of enforcing what is possible.",
  ),
  defer_loading: optional(z.literal(false, { error: "tools cannot be loaded later" })).describe(
    "Only false.",
  ),
  cache_control: cacheControl,
});

const disableParallel = withDefault(z.boolean(), false).describe(
  "Whether the model may make one call at most.",
);

const ToolChoice = z
  .discriminatedUnion(
    "type",
    [
      z.object({
        type: z.enum(["auto", "any"]).describe("auto: the model decides. any: it must call one."),
        disable_parallel_tool_use: disableParallel,
      }),
      z.object({
        type: z.literal("tool").describe("The model must call this tool."),
        name: ToolName.describe("The tool to call."),
        disable_parallel_tool_use: disableParallel,
      }),
      z.object({ type: z.literal("none").describe("The model must not call tools.") }),
    ],
    { error: "expected an object whose type is auto, any, tool or none" },
  )
  .describe("Whether the model calls tools.");

const display = optional(z.enum(["summarized", "omitted"])).describe(
  "omitted: the thought itself is not returned, only a signature that carries it.",
);

const Thinking = z
  .discriminatedUnion(
    "type",
    [
      z.object({
        type: z.literal("enabled").describe("The model thinks before it answers."),
        budget_tokens: optional(z.int().min(1)).describe(tolerated),
        display,
      }),
      z.object({ type: z.literal("adaptive").describe("The same."), display }),
      z.object({ type: z.literal("disabled").describe("It does not think.") }),
    ],
    { error: "expected an object whose type is enabled, adaptive or disabled" },
  )
  .describe("Whether the model thinks, if its chat template has a switch for it.");

const OutputFormat = z
  .object({
    type: z
      .literal("json_schema", { error: "only json_schema is supported" })
      .describe("A JSON document that matches a schema."),
    schema: anyObject.describe("The schema."),
  })
  .describe("The format that the answer is constrained to.");

const promptFields = {
  model: modelField,
  messages: anthropicMessages,
  system: systemPrompt,
  tools: optional(list(AnthropicTool, 1024)).describe("Tools that the model may call."),
  tool_choice: optional(ToolChoice),
  thinking: optional(Thinking),
  output_config: optional(
    z.object({
      effort: optional(z.enum(["low", "medium", "high", "xhigh", "max"])).describe(
        "How much a reasoning model should think, if its chat template supports it.",
      ),
      format: optional(OutputFormat),
      task_budget: refused,
    }),
  ).describe("Options of the answer."),
  output_format: optional(OutputFormat).describe("The older name of `output_config.format`."),
  cache_control: cacheControl,
  context_management: optional(anyObject).describe(tolerated),
  mcp_servers: optional(list(z.unknown(), 0)).describe("Not supported: must be empty."),
};

export const CountTokensRequest = z
  .object(promptFields)
  .superRefine(checkPrompt)
  .meta({ id: "CountTokensRequest" });
export type CountTokensRequest = z.infer<typeof CountTokensRequest>;

export const MessagesRequest = z
  .object({
    ...promptFields,
    max_tokens: z
      .int()
      .min(0)
      .describe("The maximum number of tokens to generate; 0 only computes the prompt."),
    stream: withDefault(z.boolean(), false).describe(
      "Send the answer as server-sent events while it is generated.",
    ),
    stop_sequences: optional(list(z.string().min(1).max(1024), 64)).describe(
      "Stop strings: the answer ends before any of them.",
    ),
    temperature: optional(z.number().min(0).max(2)).describe(
      "The randomness of sampling: 0 always takes the likeliest token.",
    ),
    top_p: optional(z.number().gt(0).max(1)).describe(
      "Nucleus sampling: only the likeliest tokens whose probabilities add up to this.",
    ),
    top_k: optional(z.int().min(0)).describe(
      "Only this many of the likeliest tokens; 0 means all.",
    ),
    service_tier: optional(z.enum(["auto", "standard_only"])).describe(
      "standard_only: at most the priority NORMAL.",
    ),
    speed: optional(z.literal("standard", { error: "only standard is supported" })).describe(
      "Only standard.",
    ),
    metadata: optional(anyObject).describe(tolerated),
    inference_geo: optional(z.string()).describe(tolerated),
    container: refused,
    diagnostics: refused,
  })
  .superRefine(checkPrompt)
  .meta({ id: "MessagesRequest" });
export type MessagesRequest = z.infer<typeof MessagesRequest>;

type Checked = {
  messages: readonly AnthropicMessage[];
  tools?: readonly { name: string }[] | undefined;
  tool_choice?: z.infer<typeof ToolChoice> | undefined;
  output_config?: { format?: unknown } | undefined;
  output_format?: unknown;
};

/** Checks rules that involve several fields, such as a tool choice, which must name one of the tools. */
function checkPrompt(request: Checked, context: z.RefinementCtx): void {
  const wrong = (path: string, message: string) =>
    context.addIssue({ code: "custom", path: [path], message });
  const { tools = [], tool_choice: choice } = request;
  const names = tools.map(({ name }) => name);
  const twice = names.find((name, i) => names.indexOf(name) !== i);
  if (twice !== undefined) wrong("tools", `two tools are named ${twice}`);
  if (choice?.type === "any" && names.length === 0) {
    wrong("tool_choice", "only allowed with tools");
  }
  if (choice?.type === "tool" && !names.includes(choice.name)) {
    wrong("tool_choice", "the tool is not in tools");
  }
  if (request.output_config?.format && request.output_format) {
    wrong("output_format", "only allowed without output_config.format");
  }
  const last = request.messages.at(-1);
  if (last?.role !== "assistant" || typeof last.content === "string") return;
  if (last.content.at(-1)?.type === "text") return;
  wrong("messages", "expected a text at the end of the assistant's message, to be continued");
}

const StopReason = z.enum(["end_turn", "max_tokens", "stop_sequence", "tool_use"]);

const AnthropicUsage = z.object({
  input_tokens: z.int().describe("Tokens of the prompt that were computed."),
  cache_creation_input_tokens: z.int().describe("Always 0."),
  cache_read_input_tokens: z.int().describe("Tokens of the prompt found in the prefix cache."),
  output_tokens: z.int().describe("Generated tokens."),
});

const AnswerBlock = z.discriminatedUnion("type", [
  z.object({ type: z.literal("text"), text: z.string() }),
  z.object({ type: z.literal("thinking"), thinking: z.string(), signature: z.string() }),
  z.object({
    type: z.literal("tool_use"),
    id: z.string(),
    name: z.string(),
    input: z.record(z.string(), z.unknown()),
  }),
]);
export type AnswerBlock = z.infer<typeof AnswerBlock>;

export const MessagesResponse = z
  .object({
    id: z.string(),
    type: z.literal("message"),
    role: z.literal("assistant"),
    model: z.string(),
    content: z.array(AnswerBlock),
    stop_reason: StopReason.nullable().describe("Null in the event message_start."),
    stop_sequence: z.string().nullable().describe("The stop string that ended the answer."),
    usage: AnthropicUsage.extend({ service_tier: z.enum(["batch", "standard", "priority"]) }),
  })
  .meta({ id: "MessagesResponse" });
export type MessagesResponse = z.infer<typeof MessagesResponse>;

const index = z.int().describe("The block's index in the content.");

export const MessagesEvent = z
  .discriminatedUnion("type", [
    z.object({ type: z.literal("message_start"), message: MessagesResponse }),
    z.object({ type: z.literal("ping") }),
    z.object({ type: z.literal("content_block_start"), index, content_block: AnswerBlock }),
    z.object({
      type: z.literal("content_block_delta"),
      index,
      delta: z.discriminatedUnion("type", [
        z.object({ type: z.literal("text_delta"), text: z.string() }),
        z.object({ type: z.literal("thinking_delta"), thinking: z.string() }),
        z.object({ type: z.literal("signature_delta"), signature: z.string() }),
        z.object({ type: z.literal("input_json_delta"), partial_json: z.string() }),
      ]),
    }),
    z.object({ type: z.literal("content_block_stop"), index }),
    z.object({
      type: z.literal("message_delta"),
      delta: z.object({ stop_reason: StopReason, stop_sequence: z.string().nullable() }),
      usage: AnthropicUsage,
    }),
    z.object({ type: z.literal("message_stop") }),
  ])
  .meta({ id: "MessagesEvent" });
export type MessagesEvent = z.infer<typeof MessagesEvent>;

export const CountTokensResponse = z
  .object({ input_tokens: z.int().describe("All tokens of the prompt.") })
  .meta({ id: "CountTokensResponse" });

export const AnthropicError = z
  .object({
    type: z.literal("error"),
    error: z.object({
      type: z.string().describe("The kind of error, such as invalid_request_error."),
      message: z.string().describe("The problem, in one line."),
    }),
    request_id: z.string().optional().describe("The request's id, if the error is a response."),
  })
  .meta({ id: "AnthropicError" });
export type AnthropicError = z.infer<typeof AnthropicError>;
