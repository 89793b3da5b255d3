// GET /health
import { z } from "zod";

export const Health = z
  .object({
    status: z.enum(["ok", "loading", "draining", "down"]),
    reason: z.string().optional().describe("Why the status is not ok."),
    activity: z
      .object({
        kind: z
          .enum(["load", "warm_up", "compile", "drain"])
          .describe("Loading a model, warming one up, compiling kernels, or finishing requests."),
        model: z.string().optional().describe("Which one."),
        done: z
          .int()
          .optional()
          .describe("How far it is: bytes of weights, steps, or kernels that were begun."),
        total: z.int().optional().describe("Of how many, where that is known."),
        requests: z.int().optional().describe("Requests that are under way while it drains."),
      })
      .optional()
      .describe("Long work that the server is at."),
    uncaught_errors: z
      .int()
      .optional()
      .describe(
        "Errors outside any request since the start, if there were some; the log has them.",
      ),
  })
  .meta({ id: "Health" });
export type Health = z.infer<typeof Health>;
