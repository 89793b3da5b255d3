// GET /v1/models and /v1/models/{id}
import { z } from "zod";

export const Model = z
  .object({
    id: z.string().describe("The name to ask for it by."),
    object: z.literal("model"),
    created: z.int().describe("Unix time, in seconds."),
    owned_by: z.string(),
    max_model_len: z
      .int()
      .optional()
      .describe("Tokens of a prompt and its answer together, at most; known once it is loaded."),
  })
  .meta({ id: "Model" });
export type Model = z.infer<typeof Model>;

export const ModelList = z
  .object({ object: z.literal("list"), data: z.array(Model) })
  .meta({ id: "ModelList" });
export type ModelList = z.infer<typeof ModelList>;
