// POST /v1/embeddings
import { z } from "zod";
import { optional, withDefault } from "../field.ts";
import { prompts } from "../prompts.ts";
import { modelField } from "../sampling.ts";

export const EmbeddingRequest = z
  .object({
    input: prompts(2048).describe("A text or token ids, or up to 2048 of them."),
    model: modelField,
    encoding_format: withDefault(z.enum(["float", "base64"]), "float").describe(
      "An array of numbers, or little-endian 32-bit floats in base64.",
    ),
    dimensions: optional(z.int().min(1)).describe("Truncate vectors to this many numbers."),
    user: optional(z.string()).describe("Accepted for compatibility; has no effect."),
  })
  .meta({ id: "EmbeddingRequest" });
export type EmbeddingRequest = z.infer<typeof EmbeddingRequest>;

export const EmbeddingResponse = z
  .object({
    object: z.literal("list"),
    model: z.string(),
    data: z.array(
      z.object({
        object: z.literal("embedding"),
        index: z.int(),
        embedding: z.union([z.array(z.number()), z.string()]),
      }),
    ),
    usage: z.object({ prompt_tokens: z.int(), total_tokens: z.int() }),
  })
  .meta({ id: "EmbeddingResponse" });
export type EmbeddingResponse = z.infer<typeof EmbeddingResponse>;
