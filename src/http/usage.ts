// What every answer tells of itself.
import packageJson from "../../package.json" with { type: "json" };
import type { Usage as WireUsage } from "../api/usage.ts";
import type { Usage } from "../serve/answers.ts";

/** Changes with what may change answers to the same request. */
export const fingerprint = `mlx-serve-${packageJson.version}`;

export function usageOf({ promptTokens, cachedTokens, completionTokens }: Usage): WireUsage {
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    prompt_tokens_details: { cached_tokens: cachedTokens },
  };
}
