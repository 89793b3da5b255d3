// GET /keys: the keys with their tiers, limits and use; never the keys themselves.
import type { Context } from "hono";
import type { KeyList } from "../api/keys.ts";
import type { HttpEnv } from "./env.ts";
import { noUse } from "./metrics.ts";
import type { Serving } from "./serving.ts";

export function listKeys({ ring, metrics }: Serving) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const use = await metrics.use();
    return c.json({
      needs_key: !ring.open,
      keys: ring.callers.map(({ name, tier, owner, limiter }) => {
        const { requests, promptTokens, cachedTokens, generatedTokens } = use.get(name) ?? noUse;
        const { requestsPerMinute, tokensPerMinute, concurrent } = limiter.limits;
        return {
          ...{ name, tier, owner, requests },
          limits: {
            requests_per_minute: requestsPerMinute ?? null,
            tokens_per_minute: tokensPerMinute ?? null,
            concurrent: concurrent ?? null,
          },
          active: limiter.active,
          prompt_tokens: promptTokens,
          cached_tokens: cachedTokens,
          generated_tokens: generatedTokens,
        };
      }),
    } satisfies KeyList);
  };
}
