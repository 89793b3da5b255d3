// GET /keys: whose requests the server accepts, and what they have used.
import { z } from "zod";
import { Tier } from "./admin.ts";

const limit = z.int().nullable().describe("Null if there is none.");

export const KeyList = z
  .object({
    needs_key: z.boolean().describe("Whether requests need a key."),
    keys: z.array(
      z.object({
        name: z.string(),
        tier: Tier,
        owner: z.boolean().describe("Whether it may manage the server."),
        limits: z.object({
          requests_per_minute: limit,
          tokens_per_minute: limit,
          concurrent: limit,
        }),
        active: z.int().describe("Requests in progress that count against its limits."),
        requests: z.int().describe("Since the server's start, as are the tokens."),
        prompt_tokens: z.int(),
        cached_tokens: z.int(),
        generated_tokens: z.int(),
      }),
    ),
  })
  .meta({ id: "KeyList" });
export type KeyList = z.infer<typeof KeyList>;
