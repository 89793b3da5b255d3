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
        model: z.string().optional().describe("The model's name."),
        done: z.int().optional().describe("Progress: bytes of weights, steps, or kernels started."),
        total: z.int().optional().describe("The total, if known."),
        requests: z.int().optional().describe("Requests still running while draining."),
      })
      .optional()
      .describe("Long-running work in progress."),
    uncaught_errors: z
      .int()
      .optional()
      .describe("Errors outside any request since the start, if any; the log has details."),
  })
  .meta({ id: "Health" });
export type Health = z.infer<typeof Health>;
