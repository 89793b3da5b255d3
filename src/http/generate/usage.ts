// Metadata in every response.
import packageJson from "../../../package.json" with { type: "json" };
import type { Usage as WireUsage } from "../../api/openai/usage.ts";
import type { Usage } from "../../serve/answers.ts";

/** Differs between versions, whose answers to the same request may differ. */
export const fingerprint = `mlx-serve-${packageJson.version}`;

export function usageOf({ promptTokens, cachedTokens, completionTokens }: Usage): WireUsage {
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    prompt_tokens_details: { cached_tokens: cachedTokens },
  };
}
