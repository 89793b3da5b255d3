// The models of this machine, as their files describe them.
import { ModelNotFoundError } from "../../hub/hub-error.ts";
import type { ModelSource } from "../../hub/source.ts";
import {
  chatTemplateOf,
  describeModel,
  isEmbedder,
  type ModelDescription,
} from "../../serve/model-description.ts";
import type { Serving } from "../frame/serving.ts";

/** Undefined if one file of several would have to be named. */
export function sourceOf(models: Serving["models"], name: string): ModelSource | undefined {
  try {
    return models.sourceOf(name);
  } catch (error) {
    if (error instanceof ModelNotFoundError) return undefined;
    throw error;
  }
}

type Known = { description: ModelDescription; template: string; isEmbedder: boolean };

/** By path: a snapshot in the cache does not change, and reading headers takes a while. */
const known = new Map<string, Known>();

/** Undefined if its files are broken. */
export function knownOf(source: ModelSource): Known | undefined {
  try {
    return known.getOrInsertComputed(source.path, () => ({
      description: describeModel(source),
      template: chatTemplateOf(source) ?? "",
      isEmbedder: isEmbedder(source),
    }));
  } catch {
    return undefined;
  }
}
