// POST /tokenize and /detokenize, in vLLM's shapes.
import { z } from "zod";
import { optional, withDefault } from "../field.ts";
import { TokenIds } from "../prompts.ts";
import { modelField } from "../sampling.ts";
import { tools } from "../tools.ts";
import { chatMessages, checkTemplate, checkTools, templateFields } from "./chat.ts";

export const TokenizeRequest = z
  .object({
    model: modelField,
    prompt: optional(z.string()).describe("A text. Either this or `messages`."),
    messages: optional(chatMessages).describe("A chat. Either this or `prompt`."),
    add_special_tokens: optional(z.boolean()).describe(
      "Whether to add special tokens such as the start token to a text. Default: true. Must not be true for messages, as chat templates add their own.",
    ),
    return_token_strs: withDefault(z.boolean(), false).describe(
      "Also return the text of each token.",
    ),
    ...templateFields,
    tools,
  })
  .superRefine((request, context) => {
    const { prompt, messages, add_special_tokens } = request;
    if ((prompt === undefined) === (messages === undefined)) {
      const message = "expected either prompt or messages";
      context.addIssue({ code: "custom", path: ["prompt"], message });
    }
    if (messages && add_special_tokens) {
      const message = "not supported for messages, as the chat template adds its own";
      const params = { code: "unsupported_parameter" };
      context.addIssue({ code: "custom", path: ["add_special_tokens"], message, params });
    }
    checkTemplate(request, context);
    checkTools(request, context);
  })
  .meta({ id: "TokenizeRequest" });
export type TokenizeRequest = z.infer<typeof TokenizeRequest>;

export const TokenizeResponse = z
  .object({
    count: z.int(),
    max_model_len: z.int(),
    tokens: z.array(z.int()),
    token_strs: z.array(z.string()).nullish().describe("With `return_token_strs`."),
  })
  .meta({ id: "TokenizeResponse" });
export type TokenizeResponse = z.infer<typeof TokenizeResponse>;

export const DetokenizeRequest = z
  .object({ model: modelField, tokens: TokenIds.describe("Token ids.") })
  .meta({ id: "DetokenizeRequest" });
export type DetokenizeRequest = z.infer<typeof DetokenizeRequest>;

export const DetokenizeResponse = z
  .object({ prompt: z.string() })
  .meta({ id: "DetokenizeResponse" });
export type DetokenizeResponse = z.infer<typeof DetokenizeResponse>;
