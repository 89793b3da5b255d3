// Models that tests divide among ranks: tiny ones by their names, and others as the server finds them.
import { resolveModel } from "../../src/hub/source.ts";
import { type LoadedModel, type LoadOptions, loadModel } from "../../src/model/load.ts";
import { deepened } from "./deeper-model.ts";
import { loadTinyGguf } from "./gguf-tiny.ts";
import { goldenOf, loadTinyModel, type TinyCase, tinyCase, tinyCases } from "./tiny-models.ts";

export type RankSubject = {
  prompt: readonly number[];
  /** What mlx-lm drew behind it, where that is known. */
  greedy?: readonly number[];
  load(options: LoadOptions): LoadedModel;
  /** The same with so many layers, where it can have more. */
  deepened?(layers: number, options: LoadOptions): RankSubject;
};

/** Longer than a block, of tokens that every vocabulary has. */
const PROMPT = Array.from({ length: 40 }, (_, i) => (i * i * 37 + 11) % 1000);

/** A name that begins with `gguf:` is that of a tiny model in a GGUF file. */
export function rankSubject(name: string): RankSubject {
  const [, inGguf] = /^gguf:(.*)$/.exec(name) ?? [];
  if (inGguf) {
    const { prompt, greedy } = goldenOf(tinyCase(inGguf));
    return { prompt, greedy, load: (options) => loadTinyGguf(inGguf, options) };
  }
  const tiny = tinyCases.find((each) => each.name === name);
  if (!tiny) {
    const { path } = resolveModel(name);
    return { prompt: PROMPT, load: (options) => loadModel(path, options) };
  }
  const { prompt, greedy } = goldenOf(tiny);
  return {
    prompt,
    greedy,
    load: (options) => loadTinyModel(tiny, options),
    deepened: (layers, options) => deeperSubject(deepened(tiny, layers, options)),
  };
}

/** Nobody but one rank says what it draws. */
function deeperSubject(tiny: TinyCase): RankSubject {
  const { prompt } = goldenOf(tiny);
  return { prompt, load: (options) => loadTinyModel(tiny, options) };
}
