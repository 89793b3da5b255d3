// GET /v1/models and /v1/models/{id}
import { z } from "zod";

export const Model = z
  .object({
    id: z.string().describe("The model's name in requests."),
    object: z.literal("model"),
    created: z.int().describe("Unix time, in seconds."),
    owned_by: z.string(),
    max_model_len: z
      .int()
      .optional()
      .describe(
        "The maximum context length: prompt and answer together. Known once the model is loaded.",
      ),
  })
  .meta({ id: "Model" });
export type Model = z.infer<typeof Model>;

export const ModelList = z
  .object({ object: z.literal("list"), data: z.array(Model) })
  .meta({ id: "ModelList" });
export type ModelList = z.infer<typeof ModelList>;
