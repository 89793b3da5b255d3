// The number of tokens that a request used.
import { z } from "zod";

export const Usage = z.object({
  prompt_tokens: z.int().describe("Tokens in the prompt."),
  completion_tokens: z.int().describe("Generated tokens, in all choices."),
  total_tokens: z.int().describe("The sum of both."),
  prompt_tokens_details: z
    .object({ cached_tokens: z.int().describe("Prompt tokens found in the prefix cache.") })
    .describe("Details of the prompt's tokens."),
});
export type Usage = z.infer<typeof Usage>;
