// GET /console.json: who the console is to the server, before it asks for anything that needs a key.
import { z } from "zod";
import { Health } from "./health.ts";

export const ConsoleSession = z
  .object({
    needs_key: z.boolean().describe("Whether the server has keys."),
    sent_key: z.boolean().describe("Whether the request had one."),
    health: Health.describe("As of /health."),
    caller: z
      .object({
        name: z.string(),
        tier: z.enum(["HIGH", "NORMAL", "LOW"]),
        owner: z.boolean().describe("Whether the key may manage the server."),
        version: z.string().describe("The server's version."),
      })
      .nullable()
      .describe("Whose key it is; null if the server needs one and does not know this one."),
  })
  .meta({ id: "ConsoleSession" });
export type ConsoleSession = z.infer<typeof ConsoleSession>;
