// POST /models/load and /models/unload, GET /ps: what whoever runs the server asks of it.
import { z } from "zod";

const model = z.string().min(1).max(512).describe("The model's name.");

export const LoadRequest = z.object({ model }).meta({ id: "LoadRequest" });
export type LoadRequest = z.infer<typeof LoadRequest>;

export const UnloadRequest = z.object({ model }).meta({ id: "UnloadRequest" });
export type UnloadRequest = z.infer<typeof UnloadRequest>;

export const UnloadResponse = z
  .object({ id: z.string(), object: z.literal("model"), unloaded: z.literal(true) })
  .meta({ id: "UnloadResponse" });
export type UnloadResponse = z.infer<typeof UnloadResponse>;

const Tier = z.enum(["HIGH", "NORMAL", "LOW"]);

export const PsResponse = z
  .object({
    models: z.array(
      z.object({
        name: z.string(),
        dtype: z.string(),
        weight_bytes: z.int(),
        kv_bytes: z.int().describe("Of the block pool, whether used or not."),
        active_bytes: z.int().describe("What MLX holds for all models together."),
        max_model_len: z.int(),
        running: z.int().describe("Answers that take part in steps."),
        waiting: z.int().describe("Answers that wait for their turn."),
        blocks: z.object({
          total: z.int(),
          free: z.int(),
          cached: z.int().describe("Idle, kept for prompts that begin alike."),
          held: z.int().describe("Of answers under way."),
          shared: z.int().describe("Of those held: by more than one answer."),
        }),
        steps: z.int(),
        preemptions: z.int(),
        prompt_tokens: z.int(),
        cached_tokens: z.int(),
        generated_tokens: z.int(),
      }),
    ),
    requests: z.array(
      z.object({
        model: z.string(),
        id: z.string().describe("The request's x-request-id."),
        index: z.int().describe("Which of the request's answers."),
        state: z.enum(["waiting", "running"]),
        tier: Tier,
        standing: z.number().describe("The tier as a number, raised by waiting."),
        age_ms: z.number(),
        prompt_tokens: z.int(),
        cached_tokens: z.int(),
        generated_tokens: z.int(),
        preemptions: z.int(),
        blocks: z.int(),
      }),
    ),
  })
  .meta({ id: "PsResponse" });
export type PsResponse = z.infer<typeof PsResponse>;
