// /keys: the API keys and their usage.
import { z } from "zod";
import { Tier } from "./admin.ts";

const limit = z.int().nullable().describe("Null if unlimited.");

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

const name = z
  .string()
  .min(1)
  .max(40)
  .describe("The key's name: letters, digits, dots, dashes and underscores.");
const newLimit = z.int().positive().optional().describe("Unlimited by default.");

export const AddKeyRequest = z
  .object({
    name,
    tier: Tier.default("NORMAL").describe("The priority of its requests."),
    limits: z
      .object({ requests_per_minute: newLimit, tokens_per_minute: newLimit, concurrent: newLimit })
      .default({})
      .describe("The key's limits."),
  })
  .meta({ id: "AddKeyRequest" });
export type AddKeyRequest = z.infer<typeof AddKeyRequest>;

export const AddKeyResponse = z
  .object({
    name: z.string(),
    object: z.literal("key"),
    key: z.string().describe("The key, returned only here: the server stores its hash."),
  })
  .meta({ id: "AddKeyResponse" });
export type AddKeyResponse = z.infer<typeof AddKeyResponse>;

export const RevokeKeyRequest = z.object({ name }).meta({ id: "RevokeKeyRequest" });
export type RevokeKeyRequest = z.infer<typeof RevokeKeyRequest>;

export const RevokeKeyResponse = z
  .object({ name: z.string(), object: z.literal("key"), revoked: z.literal(true) })
  .meta({ id: "RevokeKeyResponse" });
export type RevokeKeyResponse = z.infer<typeof RevokeKeyResponse>;
