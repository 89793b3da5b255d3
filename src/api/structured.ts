// What the text of an answer is held to: OpenAI's response_format, and what vLLM takes besides it.
import { z } from "zod";
import { list, optional } from "./field.ts";

export const JsonSchema = z.union([z.record(z.string(), z.unknown()), z.boolean()], {
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
        type: z.literal("json_schema").describe("A JSON document that a schema allows."),
        json_schema: z
          .object({
            name: z
              .string()
              .regex(/^[a-zA-Z0-9_-]{1,64}$/, "expected up to 64 letters, digits, _ and -")
              .describe("What the schema is called; has no effect."),
            description: optional(z.string()).describe("Has no effect."),
            schema: optional(JsonSchema).describe("The schema; without one, any JSON object."),
            strict: optional(z.boolean()).describe("Has no effect: a schema is always enforced."),
          })
          .describe("The schema, and what it is called."),
      }),
    ],
    { error: "expected an object whose type is text, json_object or json_schema" },
  )
  .describe("The form of the answer.");
export type ResponseFormat = z.infer<typeof ResponseFormat>;

const regex = optional(z.string().min(1)).describe("A regular expression for the whole answer.");
const choice = optional(list(z.string().min(1), 1024, 1)).describe("The answer is one of these.");
const grammar = optional(z.string().min(1)).describe("A grammar in EBNF that begins with `root`.");
const json = optional(
  z.union([JsonSchema, z.string()], { error: "expected a JSON schema, or one as a string" }),
);

/** vLLM's names, the newer and the older. */
export const StructuredFields = z.object({
  structured_outputs: optional(
    z.object({
      json: json.describe("A JSON schema."),
      json_object: optional(z.boolean()).describe("Any JSON object."),
      regex,
      choice,
      grammar,
    }),
  ).describe("What the answer has to match: one of these."),
  guided_json: json.describe("The older name of `structured_outputs.json`."),
  guided_regex: regex,
  guided_choice: choice,
  guided_grammar: grammar,
});
export type StructuredFields = z.infer<typeof StructuredFields>;
