// Reads the sentence-transformers modules that run after the model (such as pooling), listed in modules.json in the
// model's folder, and their configurations.
import { z } from "zod";

/** Reads a file in the model's folder; undefined if it does not exist. */
export type ReadText = (name: string) => string | undefined;

export type SentenceModules = {
  has(kind: string): boolean;
  /** Returns the configuration of the module of this kind, and its file's name; undefined without such a module. */
  config(kind: string): { file: string; json: unknown } | undefined;
};

const Modules = z.array(z.object({ type: z.string(), path: z.string() }));

/** Reads the modules of a model; returns none if modules.json is missing or invalid. */
export function sentenceModules(text: ReadText): SentenceModules {
  const { data: modules = [] } = Modules.safeParse(jsonOf(text("modules.json")));
  const kinds = modules.map(({ type }) => type.split(".").at(-1));
  return {
    has: (kind) => kinds.includes(kind),
    config(kind) {
      const { path = "" } = modules[kinds.indexOf(kind)] ?? {};
      // Ignores a path that is not a plain folder name, because it may lead out of the model's folder.
      if (!/^[\w-]+$/.test(path)) return undefined;
      const file = `${path}/config.json`;
      return { file, json: jsonOf(text(file)) };
    },
  };
}

/** Parses JSON; returns undefined if the text is not valid JSON. */
export function jsonOf(text: string | undefined): unknown {
  try {
    return text === undefined ? undefined : JSON.parse(text);
  } catch {
    return undefined;
  }
}
