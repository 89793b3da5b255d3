// Fields shared by Ollama's requests: the model's name, how long it stays loaded, and the object `options`.
import { z } from "zod";
import { optional, stringOrList } from "../field.ts";
import { modelField } from "../sampling.ts";

const tolerated = "Accepted for compatibility; has no effect.";

/** Removes the tag `latest`, which is the default in Ollama, from the model's name. */
export const ollamaModel = modelField.transform((name) => name.replace(/:latest$/, ""));

/** Returns the schema of an unsupported option: only `value`, with which the option has no effect, is accepted. */
const only = <T extends number | boolean>(value: T, meaning: string) =>
  optional(z.literal(value, { error: `only ${value} is supported` })).describe(
    `Only ${value}: ${meaning}.`,
  );

const tolerance = <T extends z.ZodType>(field: T) => optional(field).describe(tolerated);

const StopString = z.string().min(1).max(1024);

const Options = z.object({
  num_predict: optional(z.int().min(-2)).describe(
    "The maximum number of tokens to generate; -1 and -2 mean as many as fit the context, 0 only computes the prompt.",
  ),
  temperature: optional(z.number().min(0).max(2)).describe(
    "The randomness of sampling: 0 always takes the likeliest token.",
  ),
  top_k: optional(z.int().min(-1)).describe(
    "Only this many of the likeliest tokens; -1 and 0 mean all.",
  ),
  top_p: optional(z.number().gt(0).max(1)).describe(
    "Nucleus sampling: only the likeliest tokens whose probabilities add up to this.",
  ),
  min_p: optional(z.number().min(0).max(1)).describe(
    "Only tokens at least this probable, relative to the likeliest one.",
  ),
  seed: optional(z.int()).describe("The same request with the same seed samples the same tokens."),
  stop: optional(
    stringOrList(StopString, StopString, {
      max: 64,
      error: "expected a string or an array of strings",
    }).transform((stop) => (typeof stop === "string" ? [stop] : stop)),
  ).describe("Stop strings: the answer ends before any of them."),
  repeat_penalty: optional(z.number().min(0.01).max(10)).describe(
    "Divides the logits of tokens in the prompt or the answer; 1 has no effect.",
  ),
  presence_penalty: optional(z.number().min(-2).max(2)).describe(
    "Subtracted from a token's logit if it was generated before.",
  ),
  frequency_penalty: optional(z.number().min(-2).max(2)).describe(
    "Subtracted from a token's logit for each time it was generated.",
  ),
  num_ctx: optional(z.int().min(1)).describe(
    "Required context length: a model with a shorter one is rejected.",
  ),
  repeat_last_n: only(-1, "penalties count all tokens"),
  typical_p: only(1, "there is no such sampling"),
  tfs_z: only(1, "there is no such sampling"),
  mirostat: only(0, "there is no such sampling"),
  penalize_newline: only(true, "a new line is a token as any other"),
  // These options tune Ollama's own runtime; they are accepted, and have no effect.
  num_keep: tolerance(z.int()),
  num_batch: tolerance(z.int()),
  num_gpu: tolerance(z.int()),
  main_gpu: tolerance(z.int()),
  num_thread: tolerance(z.int()),
  draft_num_predict: tolerance(z.int()),
  use_mmap: tolerance(z.boolean()),
  use_mlock: tolerance(z.boolean()),
  numa: tolerance(z.boolean()),
  low_vram: tolerance(z.boolean()),
  f16_kv: tolerance(z.boolean()),
  mirostat_tau: tolerance(z.number()),
  mirostat_eta: tolerance(z.number()),
});

export const options = optional(Options).describe("Sampling, limits and more, see below.");

const unitsMs: Readonly<Record<string, number>> = {
  ns: 1e-6,
  us: 1e-3,
  µs: 1e-3,
  ms: 1,
  s: 1e3,
  m: 6e4,
  h: 36e5,
};

/** Parses a duration in Go's format, such as 1h30m; a negative one means forever. */
function durationMs(value: number | string): number {
  if (typeof value === "number") return value < 0 ? Number.POSITIVE_INFINITY : value * 1000;
  if (value === "0") return 0;
  if (!/^[+-]?((\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h))+$/.test(value)) return Number.NaN;
  if (value.startsWith("-")) return Number.POSITIVE_INFINITY;
  const parts = Array.from(value.matchAll(/([\d.]+)([a-zµ]+)/g), ([, count, unit]) => {
    return Number(count) * unitsMs[unit!]!;
  });
  return parts.reduce((sum, part) => sum + part, 0);
}

export const keepAlive = optional(
  z
    .union([z.number(), z.string().max(64)], { error: "expected a number or a string" })
    .transform(durationMs)
    .refine((ms) => !Number.isNaN(ms), "expected seconds, or a time such as 5m"),
).describe(
  "How long the model stays loaded without requests from now on, in seconds or as in 5m; -1 is forever, and 0 unloads it. Has an effect only for keys that manage the server.",
);
