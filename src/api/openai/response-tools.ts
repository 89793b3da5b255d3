// The tools of OpenAI's Responses API.
import { z } from "zod";
import { anyObject, list, optional, withDefault } from "../field.ts";

const ToolName = z
  .string()
  .regex(/^[a-zA-Z0-9_-]{1,128}$/, "expected up to 128 letters, digits, _ and -");
const description = optional(z.string()).describe("What the tool does, for the model.");
const deferLoading = optional(z.literal(false, { error: "tools cannot be loaded later" })).describe(
  "Only false.",
);

const FunctionTool = z.object({
  type: z.literal("function").describe("A function."),
  name: ToolName.describe("The function's name."),
  description,
  parameters: optional(anyObject).describe(
    "A JSON schema of the arguments, an object. Default: no arguments.",
  ),
  strict: withDefault(z.boolean(), false).describe(
    "Reject a schema that cannot be enforced completely, instead of enforcing what is possible.",
  ),
  defer_loading: deferLoading,
});

const CustomTool = z.object({
  type: z.literal("custom").describe("A tool that takes a text."),
  name: ToolName.describe("The tool's name."),
  description,
  format: optional(
    z.discriminatedUnion(
      "type",
      [
        z.object({ type: z.literal("text").describe("Any text.") }),
        z.object({
          type: z.literal("grammar").describe("A text that a grammar derives."),
          syntax: z
            .enum(["lark", "regex"])
            .describe("The grammar's language; rules in Lark's must not contain themselves."),
          definition: z.string().min(1).describe("The grammar."),
        }),
      ],
      { error: "expected an object whose type is text or grammar" },
    ),
  ).describe("What the tool's input is constrained to."),
  defer_loading: deferLoading,
});

const NamespaceTool = z.object({
  type: z.literal("namespace").describe("Tools under a common name."),
  name: ToolName.describe("The namespace's name."),
  description: optional(z.string()).describe("What its tools are for; has no effect."),
  tools: list(
    z.discriminatedUnion("type", [FunctionTool, CustomTool], {
      error: "expected a tool of type function or custom",
    }),
    1024,
  ).describe("Its tools."),
});

const SearchTool = z.object({
  type: z
    .enum(["web_search", "web_search_preview"])
    .describe("Accepted, as agents always send it; the model cannot call it."),
});

export const ResponseTool = z.discriminatedUnion(
  "type",
  [FunctionTool, CustomTool, NamespaceTool, SearchTool],
  { error: "expected a tool of type function, custom or namespace" },
);
export type ResponseTool = z.infer<typeof ResponseTool>;
export type FunctionTool = z.infer<typeof FunctionTool>;
export type CustomTool = z.infer<typeof CustomTool>;

const NamedTool = z.object({
  type: z.enum(["function", "custom"]).describe("The kind of tool."),
  name: ToolName.describe("The tool's name."),
  namespace: optional(z.string()).describe("The tool's namespace."),
});
export type NamedTool = z.infer<typeof NamedTool>;

export const ResponseToolChoice = z
  .union(
    [
      z.enum(["none", "auto", "required"]),
      NamedTool,
      z.object({
        type: z.literal("allowed_tools").describe("The model may call only some tools."),
        mode: z.enum(["auto", "required"]).describe("Whether it has to."),
        tools: list(NamedTool, 1024, 1).describe("The tools that it may call."),
      }),
    ],
    { error: "expected none, auto, required, or an object that names tools" },
  )
  .describe(
    "none: no calls. auto: the model decides. required: one or more calls. Or the tools to call.",
  );
export type ResponseToolChoice = z.infer<typeof ResponseToolChoice>;
