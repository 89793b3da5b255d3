// Structured output: OpenAI's response_format, and vLLM's fields.
import { z } from "zod";
import { anyObject, list, optional } from "./field.ts";

export const JsonSchema = z.union([anyObject, z.boolean()], {
  error: "expected a JSON schema: an object or a boolean",
});
export type JsonSchema = z.infer<typeof JsonSchema>;

export const ResponseFormat = z
  .discriminatedUnion(
    "type",
    [
      z.object({ type: z.literal("text").describe("Any text.") }),
      z.object({ type: z.literal("json_object").describe("A JSON object.") }),
      z.object({
        type: z.literal("json_schema").describe("A JSON document that matches a schema."),
        json_schema: z
          .object({
            name: z
              .string()
              .regex(/^[a-zA-Z0-9_-]{1,64}$/, "expected up to 64 letters, digits, _ and -")
              .describe("The schema's name; has no effect."),
            description: optional(z.string()).describe("Has no effect."),
            schema: optional(JsonSchema).describe("The schema. Default: any JSON object."),
            strict: optional(z.boolean()).describe("Has no effect: a schema is always enforced."),
          })
          .describe("The schema and its name."),
      }),
    ],
    { error: "expected an object whose type is text, json_object or json_schema" },
  )
  .describe("The format that the answer is constrained to.");
export type ResponseFormat = z.infer<typeof ResponseFormat>;

const regex = optional(z.string().min(1)).describe(
  "A regular expression that the whole answer matches.",
);
const choice = optional(list(z.string().min(1), 1024, 1)).describe(
  "The answer is one of these texts.",
);
const grammar = optional(z.string().min(1)).describe(
  "A grammar in EBNF whose start rule is `root`.",
);
const json = optional(
  z.union([JsonSchema, z.string()], { error: "expected a JSON schema, or one as a string" }),
);

/** vLLM's fields, with their current and older names. */
export const StructuredFields = z.object({
  structured_outputs: optional(
    z.object({
      json: json.describe("A JSON schema."),
      json_object: optional(z.boolean()).describe("Any JSON object."),
      regex,
      choice,
      grammar,
    }),
  ).describe("The constraint on the answer: one of these fields."),
  guided_json: json.describe("The older name of `structured_outputs.json`."),
  guided_regex: regex,
  guided_choice: choice,
  guided_grammar: grammar,
});
export type StructuredFields = z.infer<typeof StructuredFields>;
