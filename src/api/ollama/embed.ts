// Ollama's POST /api/embed and /api/embeddings
import { z } from "zod";
import { optional } from "../field.ts";
import { texts } from "../prompts.ts";
import { keepAlive, ollamaModel, options } from "./options.ts";

const embedFields = { model: ollamaModel, options, keep_alive: keepAlive };

export const OllamaEmbedRequest = z
  .object({
    ...embedFields,
    input: texts(2048).describe("A text, or up to 2048 of them."),
    dimensions: optional(z.int().min(1)).describe("Truncate vectors to this many numbers."),
    truncate: optional(z.literal(false, { error: "texts are not truncated" })).describe(
      "Only false: a text that does not fit the context is refused.",
    ),
  })
  .meta({ id: "OllamaEmbedRequest" });

export const OllamaEmbedResponse = z
  .object({
    model: z.string(),
    embeddings: z.array(z.array(z.number())),
    total_duration: z.int().describe("In nanoseconds."),
    load_duration: z.int().describe("Nanoseconds until the model was loaded."),
    prompt_eval_count: z.int().describe("The tokens of all texts."),
  })
  .meta({ id: "OllamaEmbedResponse" });
export type OllamaEmbedResponse = z.infer<typeof OllamaEmbedResponse>;

export const OllamaEmbeddingsRequest = z
  .object({ ...embedFields, prompt: z.string().min(1).describe("The text.") })
  .meta({ id: "OllamaEmbeddingsRequest" });

export const OllamaEmbeddingsResponse = z
  .object({ embedding: z.array(z.number()) })
  .meta({ id: "OllamaEmbeddingsResponse" });
export type OllamaEmbeddingsResponse = z.infer<typeof OllamaEmbeddingsResponse>;
