// The modules of sentence-transformers that a model's folder names in modules.json: what comes behind the model,
// and how.
import { z } from "zod";

/** Reads a file in the model's folder; undefined if it does not exist. */
export type ReadText = (name: string) => string | undefined;

export type SentenceModules = {
  has(kind: string): boolean;
  /** Where the module of this kind is configured, and how; undefined if there is no such module. */
  config(kind: string): { file: string; json: unknown } | undefined;
};

const Modules = z.array(z.object({ type: z.string(), path: z.string() }));

/** None if there is no modules.json, or not a valid one. */
export function sentenceModules(text: ReadText): SentenceModules {
  const { data: modules = [] } = Modules.safeParse(jsonOf(text("modules.json")));
  const kinds = modules.map(({ type }) => type.split(".").at(-1));
  return {
    has: (kind) => kinds.includes(kind),
    config(kind) {
      const { path = "" } = modules[kinds.indexOf(kind)] ?? {};
      // Paths that lead out of the model's folder are ignored.
      if (!/^[\w-]+$/.test(path)) return undefined;
      const file = `${path}/config.json`;
      return { file, json: jsonOf(text(file)) };
    },
  };
}

/** Undefined if it is not valid. */
export function jsonOf(text: string | undefined): unknown {
  try {
    return text === undefined ? undefined : JSON.parse(text);
  } catch {
    return undefined;
  }
}
