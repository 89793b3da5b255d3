// How many tokens a request has taken.
import { z } from "zod";

export const Usage = z.object({
  prompt_tokens: z.int().describe("Tokens of the prompt."),
  completion_tokens: z.int().describe("Tokens that were generated, of all choices."),
  total_tokens: z.int().describe("Both together."),
  prompt_tokens_details: z
    .object({
      cached_tokens: z.int().describe("Of the prompt's tokens, those that were found computed."),
    })
    .describe("More about the prompt's tokens."),
});
export type Usage = z.infer<typeof Usage>;
