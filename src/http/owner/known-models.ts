// The models on this machine, as described by their files.
import { ModelNotFoundError } from "../../hub/hub-error.ts";
import type { ModelSource } from "../../hub/source.ts";
import {
  chatTemplateOf,
  describeModel,
  isEmbedder,
  type ModelDescription,
} from "../../serve/model-description.ts";
import type { ServedModels } from "../../serve/models.ts";

/** Returns the model's files; undefined if the name is ambiguous, because the folder has several GGUF files. */
export function sourceOf(models: ServedModels, name: string): ModelSource | undefined {
  try {
    return models.sourceOf(name);
  } catch (error) {
    if (error instanceof ModelNotFoundError) return undefined;
    throw error;
  }
}

type Known = { description: ModelDescription; template: string; isEmbedder: boolean };

/** Descriptions by path, kept forever: snapshots in the cache are immutable, and reading headers is slow. */
const known = new Map<string, Known>();

/** Returns the model's description; undefined if its files are corrupt. */
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
