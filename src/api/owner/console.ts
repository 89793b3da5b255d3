// GET /console.json: whether keys are needed, the caller, and the server's health; needs no key itself.
import { z } from "zod";
import { Health } from "./health.ts";

export const ConsoleSession = z
  .object({
    needs_key: z.boolean().describe("Whether the server has keys."),
    sent_key: z.boolean().describe("Whether the request had one."),
    health: Health.describe("The content of /health."),
    caller: z
      .object({
        name: z.string(),
        tier: z.enum(["HIGH", "NORMAL", "LOW"]),
        owner: z.boolean().describe("Whether the key may manage the server."),
        version: z.string().describe("The server's version."),
      })
      .nullable()
      .describe("The key's identity; null if a key is needed and this one is missing or wrong."),
  })
  .meta({ id: "ConsoleSession" });
export type ConsoleSession = z.infer<typeof ConsoleSession>;
