// POST /bench: the server benchmarks itself.
import { z } from "zod";
import { list, optional, withDefault } from "../field.ts";
import { modelField } from "../sampling.ts";

const modes = ["compare", "single", "batched", "sweep", "prefix", "mixed", "priority"] as const;

export const BenchRequest = z
  .object({
    model: modelField,
    mode: withDefault(z.enum(modes), "compare").describe("The mode of `mlx-serve bench`."),
    requests: withDefault(z.int().min(1).max(256), 8).describe("Requests per pass."),
    max_tokens: withDefault(z.int().min(1).max(4096), 32).describe("Maximum tokens of an answer."),
    repeat: withDefault(z.int().min(1).max(20), 1).describe("Number of measured passes."),
    levels: optional(list(z.int().min(1).max(256), 12, 1)).describe(
      "Concurrency levels of a sweep. Default: 1, 2, 4, 8, 16.",
    ),
  })
  .meta({ id: "BenchRequest" });
export type BenchRequest = z.infer<typeof BenchRequest>;

export const BenchEvent = z
  .discriminatedUnion("type", [
    z.object({
      type: z.literal("progress"),
      answered: z.int().describe("Requests that have been answered."),
      total: z.int(),
    }),
    z.object({
      type: z.literal("results"),
      verdict: z.string(),
      picture: z.string().describe("SVG."),
      results: z.array(
        z.looseObject({
          mode: z.string(),
          concurrency: z.int(),
          tokens_per_second: z.number(),
          p50_ttft_ms: z.number(),
          p99_ttft_ms: z.number(),
          p50_inter_token_ms: z.number(),
          p99_inter_token_ms: z.number(),
          speedup: z.number().optional(),
        }),
      ),
    }),
  ])
  .meta({ id: "BenchEvent" });
export type BenchEvent = z.infer<typeof BenchEvent>;
