// GET /engine/events: the engine's activity as a stream.
import { z } from "zod";
import { PsResponse, Tier } from "./admin.ts";

const StepsEvent = z.object({
  type: z.literal("steps"),
  requests: z.array(z.string()).describe("The x-request-ids that rows refer to, by index."),
  steps: z.array(
    z.object({
      model: z.string(),
      step: z.int(),
      ms: z.number(),
      rows: z
        .array(z.int())
        .optional()
        .describe(
          "Three numbers per sequence: the index of its request, its tokens, and 1 for prefill. Absent if equal to the model's previous step in this event.",
        ),
      preempted: z.int(),
      running: z.int(),
      waiting: z.int(),
    }),
  ),
  ended: z
    .array(
      z.object({
        id: z.string(),
        model: z.string().optional(),
        tier: Tier.optional(),
        outcome: z.enum(["done", "refused", "gone", "failed"]),
        finish: z.string().optional(),
        error: z.string().optional(),
        prompt_tokens: z.int().optional(),
        cached_tokens: z.int().optional(),
        completion_tokens: z.int().optional(),
        queue_ms: z.number().optional(),
        ttft_ms: z.number().optional(),
        ms: z.number(),
      }),
    )
    .describe("Requests that have ended."),
  left_out: z.int().describe("Steps omitted because there were too many."),
});

const StateEvent = z.object({
  type: z.literal("state"),
  ...PsResponse.shape,
  admitted: z.int().describe("Requests that have been admitted and have not ended."),
  memory: z.object({
    total_bytes: z.int(),
    usable_bytes: z.int().describe("Limit for models."),
    room_bytes: z.int().describe("Free for another model."),
  }),
  latency: z
    .array(
      z.object({
        name: z.enum(["first_token", "inter_token", "queue", "request"]),
        limits: z.array(z.number()).describe("In seconds."),
        counts: z
          .array(z.int())
          .describe("Per bucket, up to each limit; the last one counts values above all limits."),
        count: z.int(),
      }),
    )
    .describe("As in /metrics, summed over all keys and models."),
  maps: z.array(
    z.object({
      model: z.string(),
      blocks_per_cell: z.int(),
      cells: z
        .string()
        .describe(
          "The blocks of the KV cache: free is `.`, cached `c`, held `h`, shared `s`; a cell shows its most used block.",
        ),
      followed: z.array(z.object({ id: z.string(), index: z.int(), cells: z.array(z.int()) })),
    }),
  ),
});

const LostEvent = z.object({
  type: z.literal("lost"),
  steps: z.int().describe("Steps lost because this client read too slowly."),
});

export const EngineFeedEvent = z
  .discriminatedUnion("type", [StepsEvent, StateEvent, LostEvent])
  .meta({ id: "EngineFeedEvent" });
export type EngineFeedEvent = z.infer<typeof EngineFeedEvent>;

export type StepsEvent = z.infer<typeof StepsEvent>;
export type StateEvent = z.infer<typeof StateEvent>;
