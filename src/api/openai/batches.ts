// /v1/batches
import { z } from "zod";
import { optional } from "../field.ts";
import { expiresAfter, pageQuery } from "./files.ts";

const metadata = z
  .record(z.string().max(64), z.string().max(512))
  .refine((pairs) => Object.keys(pairs).length <= 16, "expected at most 16 pairs");

/** Minimum and maximum of a batch's completion window in seconds; timers are limited to 24 days. */
const [MIN_WINDOW, MAX_WINDOW] = [1, 14 * 86_400];
const units: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3600, d: 86_400 };

/** Parses a completion window, such as 24h; returns undefined if it is invalid. */
export function windowSeconds(window: string): number | undefined {
  const [, count, unit = ""] = /^(\d{1,7})([smhd])$/.exec(window) ?? [];
  const seconds = Number(count) * (units[unit] ?? Number.NaN);
  return seconds >= MIN_WINDOW && seconds <= MAX_WINDOW ? seconds : undefined;
}

export const BatchRequest = z
  .object({
    input_file_id: z.string().describe("An uploaded file of requests: a JSON object a line."),
    endpoint: z.string().describe("The endpoint of the requests, such as /v1/chat/completions."),
    completion_window: z
      .string()
      .refine((window) => windowSeconds(window) !== undefined, "expected 1s to 14d, such as 24h")
      .describe("Time limit, such as 24h; requests unanswered by then expire."),
    metadata: optional(metadata).describe("Up to 16 texts by name, returned with the batch."),
    output_expires_after: optional(expiresAfter).describe("When the output is deleted."),
  })
  .meta({ id: "BatchRequest" });
export type BatchRequest = z.infer<typeof BatchRequest>;

const time = z.int().nullable();

export const BatchObject = z
  .object({
    id: z.string(),
    object: z.literal("batch"),
    endpoint: z.string(),
    errors: z
      .object({
        object: z.literal("list"),
        data: z.array(
          z.object({
            code: z.string(),
            line: z.int().nullable().describe("Of the input file, counted from 1."),
            message: z.string(),
            param: z.string().nullable(),
          }),
        ),
      })
      .nullable(),
    input_file_id: z.string(),
    completion_window: z.string(),
    status: z.enum([
      "validating",
      "failed",
      "in_progress",
      "finalizing",
      "completed",
      "expired",
      "cancelling",
      "cancelled",
    ]),
    output_file_id: z.string().nullable().describe("The responses of 200."),
    error_file_id: z.string().nullable().describe("All other lines."),
    created_at: z.int().describe("Unix time, in seconds, as all times."),
    in_progress_at: time,
    expires_at: time,
    finalizing_at: time,
    completed_at: time,
    failed_at: time,
    expired_at: time,
    cancelling_at: time,
    cancelled_at: time,
    request_counts: z.object({ total: z.int(), completed: z.int(), failed: z.int() }),
    metadata: z.record(z.string(), z.string()).nullable(),
  })
  .meta({ id: "BatchObject" });
export type BatchObject = z.infer<typeof BatchObject>;

export const BatchList = z
  .object({
    object: z.literal("list"),
    data: z.array(BatchObject),
    first_id: z.string().nullable(),
    last_id: z.string().nullable(),
    has_more: z.boolean(),
  })
  .meta({ id: "BatchList" });
export type BatchList = z.infer<typeof BatchList>;

export const KeyBatches = z
  .object({
    batches: z.array(BatchObject.extend({ key: z.string().describe("Whose batch it is.") })),
    has_more: z.boolean(),
  })
  .meta({ id: "KeyBatches" });
export type KeyBatches = z.infer<typeof KeyBatches>;

export const CancelBatchRequest = z
  .object({ id: z.string().min(1).max(128).describe("The batch's id.") })
  .meta({ id: "CancelBatchRequest" });
export type CancelBatchRequest = z.infer<typeof CancelBatchRequest>;

export const BatchQuery = pageQuery(100, 20);
