// GET /health
import { z } from "zod";

export const Health = z
  .object({
    status: z.enum(["ok", "loading", "draining", "down"]),
    reason: z.string().optional().describe("Why the status is not ok."),
  })
  .meta({ id: "Health" });
export type Health = z.infer<typeof Health>;
