// POST /models/load, /models/unload and /requests/cancel, GET /ps: the owner's endpoints.
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

export const ModelStates = z
  .object({
    memory: z.object({
      total_bytes: z.int(),
      usable_bytes: z.int().describe("What models may take."),
      room_bytes: z.int().describe("What is left for one more."),
    }),
    models: z.array(
      z.object({
        name: z.string(),
        state: z.enum(["loaded", "loading", "failed", "not loaded"]),
        uses: z.int().describe("Requests that use it."),
        is_main: z.boolean().describe("Whether the server was started with it."),
        loaded_bytes: z.int().optional().describe("Of a load under way."),
        total_bytes: z.int().optional(),
        file_bytes: z.int(),
        fits: z
          .boolean()
          .describe(
            "Whether there is memory for it beside what is loaded, by the size of its files.",
          ),
        format: z.string(),
        architecture: z.string().optional(),
        parameters: z.int().optional(),
        quantization: z.string().optional(),
        dtype: z.string().optional().describe("Of the weights that are not quantized."),
        context_length: z.int().optional().describe("The longest that the model was made for."),
        max_model_len: z.int().optional().describe("The longest there is memory for, once loaded."),
      }),
    ),
    popular: z
      .array(
        z.object({
          name: z.string().describe("A short name, such as qwen3:4b."),
          repo: z.string(),
          bytes: z.int().optional().describe("Of the weights, about."),
          context_length: z.int().optional(),
          fits: z.boolean().optional().describe("Whether there is memory for it."),
        }),
      )
      .describe("Models of the hub that many people use and that are not here."),
  })
  .meta({ id: "ModelStates" });
export type ModelStates = z.infer<typeof ModelStates>;

export const PlanRequest = z.object({ model }).meta({ id: "PlanRequest" });
export type PlanRequest = z.infer<typeof PlanRequest>;

export const PlanResponse = z
  .object({
    model: z.string(),
    fits: z.boolean(),
    problem: z.string().optional().describe("Why it cannot be loaded."),
    dtype: z.string().optional(),
    weight_bytes: z.int().optional().describe("As they are held in memory."),
    kv_bytes: z.int().optional().describe("The pool of KV blocks and states."),
    step_bytes: z.int().optional().describe("The arrays of the largest step."),
    max_model_len: z.int().optional().describe("The longest sequence there is memory for."),
    memory_limit_bytes: z.int().optional().describe("What models may take now."),
  })
  .meta({ id: "PlanResponse" });
export type PlanResponse = z.infer<typeof PlanResponse>;

export const CancelRequest = z
  .object({ id: z.string().min(1).max(128).describe("The request's x-request-id.") })
  .meta({ id: "CancelRequest" });
export type CancelRequest = z.infer<typeof CancelRequest>;

export const CancelResponse = z
  .object({ id: z.string(), object: z.literal("request"), cancelled: z.literal(true) })
  .meta({ id: "CancelResponse" });
export type CancelResponse = z.infer<typeof CancelResponse>;

export const Tier = z.enum(["HIGH", "NORMAL", "LOW"]);

export const PsResponse = z
  .object({
    models: z.array(
      z.object({
        name: z.string(),
        dtype: z.string(),
        weight_bytes: z.int(),
        kv_bytes: z.int().describe("The size of the block pool, used or not."),
        active_bytes: z.int().describe("Memory that MLX holds for all models together."),
        max_model_len: z.int(),
        running: z.int().describe("Running sequences."),
        waiting: z.int().describe("Waiting sequences."),
        blocks: z.object({
          total: z.int(),
          free: z.int(),
          cached: z.int().describe("Not in use, kept for the prefix cache."),
          held: z.int().describe("In use by sequences."),
          shared: z.int().describe("Held blocks that more than one sequence shares."),
        }),
        slots: z
          .object({
            total: z.int(),
            free: z.int(),
            held: z.int().describe("In use by sequences."),
            snapshots: z.int().describe("Kept for prompts with the same beginning."),
            bytes: z.int().describe("The size of one."),
          })
          .optional()
          .describe("States of recurrent layers; only for models that have such."),
        steps: z.int(),
        preemptions: z.int(),
        prompt_tokens: z.int(),
        cached_tokens: z.int(),
        generated_tokens: z.int(),
        collectives: z
          .object({
            count: z.int(),
            sent_bytes: z.number().describe("By the first rank."),
            ms: z.number().describe("In all of them, estimated from those of every 64th step."),
          })
          .optional()
          .describe("Of the ranks that the model is divided among, since they were started."),
      }),
    ),
    ranks: z
      .array(
        z.object({
          rank: z.int(),
          host: z.string(),
          pid: z.int().optional().describe("On the server's own host."),
          state: z.enum(["starting", "connected", "ready"]),
        }),
      )
      .optional()
      .describe("The processes that models are divided among, with --ranks or --hosts."),
    requests: z.array(
      z.object({
        model: z.string(),
        id: z.string().describe("The request's x-request-id."),
        index: z.int().describe("The index of the answer within its request."),
        state: z.enum(["waiting", "running"]),
        tier: Tier,
        standing: z
          .number()
          .describe("The priority as a number, which rises while the request waits."),
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
