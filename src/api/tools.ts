// Tools: functions that a model may call.
import { z } from "zod";
import { anyObject, list, optional, withDefault } from "./field.ts";

const FunctionName = z
  .string()
  .regex(/^[a-zA-Z0-9_.-]{1,64}$/, "expected up to 64 letters, digits, _, . and -");

export const Tool = z.object({
  type: z
    .literal("function", { error: "only functions are supported" })
    .describe("Always `function`."),
  function: z
    .object({
      name: FunctionName.describe("The function's name."),
      description: optional(z.string()).describe("What the function does, for the model."),
      parameters: optional(anyObject).describe(
        "A JSON schema of the arguments, an object. Default: no arguments.",
      ),
      strict: withDefault(z.boolean(), false).describe(
        "Reject a schema that cannot be enforced completely, instead of enforcing what is possible.",
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
        type: z.literal("function").describe("Always `function`."),
        function: z
          .object({ name: FunctionName.describe("Its name.") })
          .describe("The function to call."),
      }),
    ],
    { error: "expected none, auto, required, or an object that names a function" },
  )
  .describe(
    "none: no calls. auto: the model decides. required: one or more calls. Or the function to call.",
  );
export type ToolChoice = z.infer<typeof ToolChoice>;
