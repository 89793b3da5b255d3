// The input and output items of OpenAI's Responses API.
import { z } from "zod";
import { list, optional, stringOrList } from "../field.ts";

const id = optional(z.string()).describe("The item's id.");
const status = optional(z.string()).describe("The item's status.");
const callId = z.string().min(1).describe("The id that ties a call and its output together.");
const namespace = optional(z.string()).describe("The namespace of the tool.");

const TextPart = z.object({
  type: z.enum(["input_text", "output_text", "text"]).describe("A text."),
  text: z.string().describe("The text."),
});

const RefusalPart = z.object({
  type: z.literal("refusal").describe("The model's refusal to answer."),
  refusal: z.string().describe("Its text."),
});

/** Returns the schema of an unsupported part type, which rejects every part. */
function refusedPart<T extends string>(type: T, message: string) {
  return z
    .object({ type: z.literal(type).describe("Not supported.") })
    .refine(() => false, { message, params: { code: "unsupported_parameter" } });
}

const refusedParts = [
  refusedPart("input_image", "images are not supported"),
  refusedPart("input_file", "files are not supported"),
  refusedPart("input_audio", "audio is not supported"),
] as const;

const Content = stringOrList(
  z.string(),
  z.discriminatedUnion("type", [TextPart, RefusalPart, ...refusedParts], {
    error: "expected a part of type input_text or output_text",
  }),
  { max: 4096, error: "expected a string or an array of parts" },
);

const Output = stringOrList(
  z.string(),
  z.discriminatedUnion("type", [TextPart, ...refusedParts], {
    error: "expected a part of type input_text",
  }),
  { max: 4096, error: "expected a string or an array of parts" },
);

const MessageItem = z.object({
  type: z.literal("message").describe("A message; the type may be absent."),
  role: z
    .enum(["user", "assistant", "system", "developer"])
    .describe("The role of the message's author."),
  content: Content.describe("A text, or its parts."),
  id,
  status,
});

const FunctionCall = z.object({
  type: z.literal("function_call").describe("A call of a function."),
  call_id: callId,
  name: z.string().min(1).describe("The function's name."),
  namespace,
  arguments: z.string().describe("JSON, as the model wrote it."),
  id,
  status,
});

const FunctionCallOutput = z.object({
  type: z.literal("function_call_output").describe("What a function returned."),
  call_id: callId,
  output: Output.describe("A text, or its parts."),
  id,
  status,
});

const CustomToolCall = z.object({
  type: z.literal("custom_tool_call").describe("A call of a custom tool."),
  call_id: callId,
  name: z.string().min(1).describe("The tool's name."),
  namespace,
  input: z.string().describe("The tool's input, as the model wrote it."),
  id,
  status,
});

const CustomToolCallOutput = z.object({
  type: z.literal("custom_tool_call_output").describe("What a custom tool returned."),
  call_id: callId,
  output: Output.describe("A text, or its parts."),
  id,
  status,
});

const ReasoningItem = z.object({
  type: z.literal("reasoning").describe("The model's reasoning before what follows."),
  summary: optional(
    list(
      z.object({
        type: z.literal("summary_text").describe("A text."),
        text: z.string().describe("The text."),
      }),
      64,
    ),
  ).describe("Has no effect."),
  content: optional(
    list(
      z.object({
        type: z.literal("reasoning_text").describe("A text."),
        text: z.string().describe("The text."),
      }),
      64,
    ),
  ).describe("The reasoning itself."),
  encrypted_content: optional(z.string()).describe("The reasoning, as returned by the server."),
  id,
  status,
});

const itemTypes =
  "expected an item of type message, reasoning, function_call, function_call_output, custom_tool_call or custom_tool_call_output";

/** An item of the input; one with a role but no type is a message. */
export const InputItem = z.preprocess(
  (value) =>
    typeof value === "object" && value !== null && "role" in value && !("type" in value)
      ? { type: "message", ...value }
      : value,
  z.discriminatedUnion(
    "type",
    [
      MessageItem,
      FunctionCall,
      FunctionCallOutput,
      CustomToolCall,
      CustomToolCallOutput,
      ReasoningItem,
    ],
    { error: itemTypes },
  ),
);
export type InputItem = z.infer<typeof InputItem>;

const itemStatus = z.enum(["in_progress", "completed", "incomplete"]);

const OutputText = z.object({
  type: z.literal("output_text"),
  text: z.string(),
  annotations: z.array(z.unknown()),
  logprobs: z.array(z.never()).describe("Always empty."),
});

const ReasoningText = z.object({ type: z.literal("reasoning_text"), text: z.string() });

export const ContentPart = z.discriminatedUnion("type", [OutputText, ReasoningText]);
export type ContentPart = z.infer<typeof ContentPart>;

export const OutputItem = z.discriminatedUnion("type", [
  z.object({
    type: z.literal("message"),
    id: z.string(),
    role: z.literal("assistant"),
    status: itemStatus,
    content: z.array(OutputText),
  }),
  z.object({
    type: z.literal("reasoning"),
    id: z.string(),
    status: itemStatus,
    summary: z.array(z.unknown()).describe("Always empty."),
    content: z.array(ReasoningText),
    encrypted_content: z.string().optional().describe("With `reasoning.encrypted_content`."),
  }),
  z.object({
    type: z.literal("function_call"),
    id: z.string(),
    status: itemStatus,
    call_id: z.string(),
    name: z.string(),
    namespace: z.string().optional(),
    arguments: z.string().describe("A JSON object; incomplete if the token limit cut it off."),
  }),
  z.object({
    type: z.literal("custom_tool_call"),
    id: z.string(),
    status: itemStatus,
    call_id: z.string(),
    name: z.string(),
    namespace: z.string().optional(),
    input: z.string(),
  }),
]);
export type OutputItem = z.infer<typeof OutputItem>;
