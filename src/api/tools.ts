// Functions that a model may call.
import { z } from "zod";
import { list, optional, withDefault } from "./field.ts";

const FunctionName = z
  .string()
  .regex(/^[a-zA-Z0-9_.-]{1,64}$/, "expected up to 64 letters, digits, _, . and -");

export const Tool = z.object({
  type: z
    .literal("function", { error: "only functions are supported" })
    .describe("There is no other."),
  function: z
    .object({
      name: FunctionName.describe("The function's name."),
      description: optional(z.string()).describe("What it does, for the model."),
      parameters: optional(z.record(z.string(), z.unknown())).describe(
        "A JSON schema of its arguments, which are an object; without one, it takes none.",
      ),
      strict: withDefault(z.boolean(), false).describe(
        "Whether a schema that cannot be enforced as a whole is refused; else as much of it as can be is.",
      ),
    })
    .describe("A function that the model may call."),
});
export type Tool = z.infer<typeof Tool>;

export const tools = optional(list(Tool, 128)).describe("Functions that the model may call.");

export const ToolChoice = z
  .union(
    [
      z.enum(["none", "auto", "required"]),
      z.object({
        type: z.literal("function").describe("There is no other."),
        function: z.object({ name: FunctionName.describe("Which one.") }).describe("Which one."),
      }),
    ],
    { error: "expected none, auto, required, or an object that names a function" },
  )
  .describe(
    "none: no calls. auto: the model decides. required: one call or more. Or the function that is to be called.",
  );
export type ToolChoice = z.infer<typeof ToolChoice>;
