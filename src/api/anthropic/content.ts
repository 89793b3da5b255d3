// The messages of Anthropic's API, whose content is a string or an array of blocks.
import { z } from "zod";
import { anyObject, list, optional, stringOrList, withDefault } from "../field.ts";

/** Marks the end of a prefix to cache; it has no effect, because prefixes are cached automatically. */
export const cacheControl = optional(anyObject).describe(
  "Accepted; prefixes are always cached where they can be.",
);

const TextBlock = z.object({
  type: z.literal("text").describe("A text."),
  text: z.string().describe("The text."),
  cache_control: cacheControl,
});

/** Returns the schema of an unsupported block type, which rejects every block. */
function refusedBlock<T extends string>(type: T, message: string) {
  return z
    .object({ type: z.literal(type).describe("Not supported.") })
    .refine(() => false, { message, params: { code: "unsupported_parameter" } });
}

const ImageBlock = refusedBlock("image", "images are not supported");
const DocumentBlock = refusedBlock("document", "documents are not supported");
const SearchResultBlock = refusedBlock("search_result", "search results are not supported");

const ResultBlock = z.discriminatedUnion(
  "type",
  [TextBlock, ImageBlock, DocumentBlock, SearchResultBlock],
  { error: "expected a block of type text" },
);

const ToolResultBlock = z.object({
  type: z.literal("tool_result").describe("The result of a call, in a message of the user."),
  tool_use_id: z.string().min(1).describe("The id of the call."),
  content: optional(
    stringOrList(z.string(), ResultBlock, {
      max: 4096,
      error: "expected a string or an array of blocks",
    }),
  ).describe("What the tool returned: a text, or blocks of text."),
  is_error: withDefault(z.boolean(), false).describe("Whether the tool failed."),
  cache_control: cacheControl,
});

const ToolUseBlock = z.object({
  type: z.literal("tool_use").describe("A call, in a message of the assistant."),
  id: z.string().min(1).describe("The id that the result refers to."),
  name: z.string().min(1).describe("The tool's name."),
  input: anyObject.describe("The arguments."),
  cache_control: cacheControl,
});

const ThinkingBlock = z.object({
  type: z.literal("thinking").describe("A thought, in a message of the assistant."),
  thinking: z.string().describe("The thought; empty if it was omitted."),
  signature: z.string().describe("As the server sent it."),
});

const RedactedBlock = refusedBlock("redacted_thinking", "redacted thoughts are not supported");

export const ContentBlock = z.discriminatedUnion(
  "type",
  [
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    ThinkingBlock,
    ImageBlock,
    DocumentBlock,
    SearchResultBlock,
    RedactedBlock,
  ],
  { error: "expected a block of type text, thinking, tool_use or tool_result" },
);
export type ContentBlock = z.infer<typeof ContentBlock>;

/** Block types that each role's messages may contain. */
const blocksOf: Readonly<Record<string, readonly ContentBlock["type"][]>> = {
  user: ["text", "tool_result"],
  assistant: ["text", "thinking", "tool_use"],
  system: ["text"],
};

export const AnthropicMessage = z
  .object({
    role: z.enum(["user", "assistant", "system"]).describe("The role of the message's author."),
    content: stringOrList(z.string(), ContentBlock, {
      max: 4096,
      error: "expected a string or an array of blocks",
    }).describe("A text, or blocks."),
  })
  .superRefine(({ role, content }, context) => {
    if (typeof content === "string") return;
    const at = content.findIndex(({ type }) => !blocksOf[role]!.includes(type));
    if (at < 0) return;
    const message = `expected no block of type ${content[at]!.type} in a message of the ${role}`;
    context.addIssue({ code: "custom", path: ["content", at, "type"], message });
  });
export type AnthropicMessage = z.infer<typeof AnthropicMessage>;

export const systemPrompt = optional(
  stringOrList(z.string(), TextBlock, {
    max: 4096,
    error: "expected a string or an array of text blocks",
  }),
).describe("The system prompt: a text, or blocks of text.");

export const anthropicMessages = list(AnthropicMessage, 100_000, 1).describe(
  "The conversation so far. If the last message is the assistant's, the answer continues it.",
);
