// The fields of every response that tell the token counts and the server's version.
import packageJson from "../../../package.json" with { type: "json" };
import type { Usage as WireUsage } from "../../api/openai/usage.ts";
import type { Usage } from "../../serve/answers.ts";

/** OpenAI's system_fingerprint; contains the version, since versions may answer the same request differently. */
export const fingerprint = `mlx-serve-${packageJson.version}`;

export function usageOf({ promptTokens, cachedTokens, completionTokens }: Usage): WireUsage {
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    prompt_tokens_details: { cached_tokens: cachedTokens },
  };
}
