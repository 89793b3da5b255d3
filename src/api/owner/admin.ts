// The owner's endpoints: POST /models/load, /models/unload and /requests/cancel, GET /ps.
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
      usable_bytes: z.int().describe("Limit for models."),
      room_bytes: z.int().describe("Free for another model."),
    }),
    models: z.array(
      z.object({
        name: z.string(),
        state: z.enum(["loaded", "loading", "failed", "not loaded"]),
        uses: z.int().describe("Requests that use it."),
        is_main: z.boolean().describe("Whether the server was started with it."),
        loaded_bytes: z.int().optional().describe("Bytes loaded so far, while loading."),
        total_bytes: z.int().optional(),
        file_bytes: z.int(),
        fits: z
          .boolean()
          .describe("Whether it fits beside the loaded models, estimated from its file size."),
        format: z.string(),
        architecture: z.string().optional(),
        parameters: z.int().optional(),
        quantization: z.string().optional(),
        dtype: z.string().optional().describe("dtype of unquantized weights."),
        context_length: z.int().optional().describe("Context length the model was trained with."),
        max_model_len: z.int().optional().describe("Context length that fits, once loaded."),
      }),
    ),
    popular: z
      .array(
        z.object({
          name: z.string().describe("A short name, such as qwen3:4b."),
          repo: z.string(),
          bytes: z.int().optional().describe("Approximate size of the weights."),
          context_length: z.int().optional(),
          fits: z.boolean().optional().describe("Whether it fits in memory."),
        }),
      )
      .describe("Popular models of the hub that are not on this machine."),
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
    weight_bytes: z.int().optional().describe("Size in memory."),
    kv_bytes: z.int().optional().describe("Size of the KV pool, including recurrent states."),
    step_bytes: z.int().optional().describe("Peak activations of the largest step."),
    max_model_len: z.int().optional().describe("Maximum sequence length that memory allows."),
    memory_limit_bytes: z.int().optional().describe("Current memory limit of models."),
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
            snapshots: z.int().describe("Kept for prompts with the same prefix."),
            bytes: z.int().describe("Size of one slot."),
          })
          .optional()
          .describe("State slots, for models with recurrent layers."),
        steps: z.int(),
        preemptions: z.int(),
        prompt_tokens: z.int(),
        cached_tokens: z.int(),
        generated_tokens: z.int(),
        collectives: z
          .object({
            count: z.int(),
            sent_bytes: z.number().describe("Sent by rank 0."),
            ms: z.number().describe("Total duration, estimated from every 64th step."),
          })
          .optional()
          .describe("Collectives of the model's ranks since their start."),
      }),
    ),
    ranks: z
      .array(
        z.object({
          rank: z.int(),
          host: z.string(),
          pid: z.int().optional().describe("Only for ranks on the server's host."),
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
