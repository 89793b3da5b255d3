// Ollama's model endpoints: /api/tags, /api/show, /api/ps, /api/pull, /api/delete, and /api/version
import { z } from "zod";
import { optional, withDefault } from "../field.ts";

const name = optional(z.string().min(1).max(512));
const nameFields = {
  model: name.describe("The model's name."),
  name: name.describe("The older name of `model`."),
};

type Named = { model?: string | undefined; name?: string | undefined };

/** Returns the model's name as `model`; some of Ollama's clients send it as `name`. */
function withName<T extends z.ZodType<Named>>(fields: T) {
  return fields.transform(({ model, name: older = model, ...rest }, context) => {
    const given = model ?? older;
    if (given !== undefined) return { ...rest, model: given.replace(/:latest$/, "") };
    const issue = { code: "invalid_type", expected: "string", input: undefined } as const;
    context.addIssue({ ...issue, path: ["model"] });
    return z.NEVER;
  });
}

export const OllamaShowRequest = withName(z.object(nameFields)).meta({ id: "OllamaShowRequest" });

export const OllamaDeleteRequest = withName(z.object(nameFields)).meta({
  id: "OllamaDeleteRequest",
});

export const OllamaPullRequest = withName(
  z.object({
    ...nameFields,
    stream: withDefault(z.boolean(), true).describe("Send the progress as lines of JSON."),
    insecure: optional(z.literal(false, { error: "only false is supported" })).describe(
      "Only false.",
    ),
  }),
).meta({ id: "OllamaPullRequest" });

export const OllamaPullStatus = z
  .object({
    status: z.string().describe("success at the end."),
    digest: z.string().optional().describe("The commit being pulled."),
    total: z.int().optional().describe("Bytes of the model."),
    completed: z.int().optional().describe("Bytes downloaded so far."),
  })
  .meta({ id: "OllamaPullStatus" });
export type OllamaPullStatus = z.infer<typeof OllamaPullStatus>;

const Details = z.object({
  parent_model: z.literal(""),
  format: z.string().describe("safetensors or gguf."),
  family: z.string().describe("The architecture."),
  families: z.array(z.string()),
  parameter_size: z.string().describe("The number of parameters, such as 134.5M."),
  quantization_level: z.string(),
});
export type OllamaDetails = z.infer<typeof Details>;

const modelFields = {
  name: z.string(),
  model: z.string().describe("The same."),
  size: z.int().describe("In bytes."),
  digest: z.string(),
  details: Details,
};

export const OllamaTags = z
  .object({ models: z.array(z.object({ ...modelFields, modified_at: z.string() })) })
  .meta({ id: "OllamaTags" });
export type OllamaTags = z.infer<typeof OllamaTags>;

export const OllamaPs = z
  .object({
    models: z.array(
      z.object({
        ...modelFields,
        size_vram: z.int().describe("Bytes on a GPU."),
        expires_at: z.string().describe("When it is unloaded without further requests."),
        context_length: z.int(),
      }),
    ),
  })
  .meta({ id: "OllamaPs" });
export type OllamaPs = z.infer<typeof OllamaPs>;

export const OllamaShow = z
  .object({
    modelfile: z.literal(""),
    parameters: z.literal(""),
    template: z.string().describe("The chat template, in Jinja."),
    details: Details,
    model_info: z.record(z.string(), z.union([z.string(), z.number()])),
    capabilities: z.array(z.enum(["completion", "tools", "thinking", "embedding"])),
    modified_at: z.string(),
  })
  .meta({ id: "OllamaShow" });
export type OllamaShow = z.infer<typeof OllamaShow>;

export const OllamaVersion = z
  .object({ version: z.string().describe("The version of Ollama whose API this is.") })
  .meta({ id: "OllamaVersion" });
export type OllamaVersion = z.infer<typeof OllamaVersion>;
