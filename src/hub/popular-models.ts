// Short names of popular models: qwen3:4b stands for a repo with weights for MLX. The table is popular-models.json,
// with the date of its last review; models.json in the settings folder adds or overrides names.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { nearest } from "../nearest.ts";
import { listRepos } from "./cache.ts";
import { codeOf, HubError, ModelNotFoundError, quoted } from "./hub-error.ts";
import table from "./popular-models.json" with { type: "json" };
import { parseRepoName } from "./repo-name.ts";
import { configFolder, type Environment, hubCache } from "./settings.ts";

export const PopularModel = z.strictObject({
  name: z
    .string()
    .regex(/^[a-z\d][a-z\d._-]*(:[a-z\d][a-z\d._-]*)?$/, "expected a name like qwen3:4b"),
  repo: z.string().refine(isRepo, "expected a repo: org/name, org/name@revision or org/name:file"),
  /** Approximate bytes of the weights. */
  bytes: z.int().positive().optional(),
  /** Context length that the model was trained for, in tokens. */
  context: z.int().positive().optional(),
  /** Whether the model is suggested to new users: one or two models per size. */
  isOffered: z.boolean().default(false),
});
export type PopularModel = z.infer<typeof PopularModel>;

const OwnTable = z.strictObject({ models: z.array(PopularModel) });

export const popularModelsDate = table.date;
const builtIn: readonly PopularModel[] = z.array(PopularModel).parse(table.models);

/** Returns the user's own models, followed by the built-in ones by decreasing size. */
export function popularModels(env: Environment): readonly PopularModel[] {
  const own = ownModels(env);
  return [...own, ...builtIn.filter(({ name }) => !own.some((each) => each.name === name))];
}

/** Expands a short name to its repo; returns other names unchanged. */
export function fullName(name: string, env: Environment): string {
  if (name.includes("/")) return name;
  const wanted = name.toLowerCase();
  return popularModels(env).find((model) => model.name === wanted)?.repo ?? name;
}

/** Returns the error for an unknown name. It suggests the most similar name; only local users get it. */
export function unknownModel(name: string, env: Environment): ModelNotFoundError {
  const meant = nearestModel(name, env);
  const hint = meant
    ? `; did you mean ${meant}?`
    : ": `mlx-serve ls` and `mlx-serve models` list names";
  return new ModelNotFoundError(`no model is named ${quoted(name)}${hint}`);
}

/** Returns the known name that is most similar to an unknown one. */
export function nearestModel(name: string, env: Environment): string | undefined {
  const wanted = name.toLowerCase();
  const short = popularModels(env).map((model) => model.name);
  const family = short.filter((each) => each.startsWith(`${wanted}:`));
  if (family.length > 0) return family.join(", ");
  const cached = listRepos(hubCache(env)).map(({ id }) => id);
  return nearest(wanted, ["default", ...short]) ?? nearest(name, cached);
}

/** Minimum memory in addition to the weights: for a KV cache and the arrays of a step. */
const BESIDE_BYTES = 1.5e9;

/** Returns the minimum memory to run a model with weights of this size. */
export function neededBytes(weightBytes: number): number {
  return weightBytes + BESIDE_BYTES;
}

function ownModels(env: Environment): readonly PopularModel[] {
  const path = join(configFolder(env), "models.json");
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (error) {
    if (["ENOENT", "ENOTDIR"].includes(codeOf(error) ?? "")) return [];
    throw new HubError(`${path}: cannot be read (${codeOf(error)}): check its permissions`);
  }
  const { data, error } = OwnTable.safeParse(jsonOf(path, text));
  if (data) return data.models;
  const { path: field, message } = error.issues[0]!;
  throw new HubError(`${path}: ${[...field, message].join(": ")}`);
}

function jsonOf(path: string, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new HubError(`${path}: not valid JSON`);
  }
}

function isRepo(text: string): boolean {
  return parseRepoName(text)?.id.includes("/") ?? false;
}
