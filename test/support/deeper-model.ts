// Tiny models with more layers than mlx-lm's goldens are of: for as many ranks as have a part of the layers each.
import { LoadError } from "../../src/files/load-error.ts";
import type { LoadOptions } from "../../src/model/load.ts";
import { goldenOf, loadTinyModel, type TinyCase } from "./tiny-models.ts";

type Json = Record<string, unknown>;

/** What configurations call the number of layers. */
const COUNTS = ["num_hidden_layers", "num_layers", "n_layers", "n_layer", "num_transformer_layers"];

/** Lists of another kind, which may be as long as there are layers. */
const NOT_BY_LAYER = ["mlp_multipliers", "mrope_section"];

const LAYER = /^(.*?\b(?:layers|h|blocks|gate_projections)\.)(\d+)(\..*)$/;

/**
 * The model with so many layers. Those behind its own are each like one of them, with weights of their own: like the
 * first one again, the second and so on, unless the configuration has layers of another kind there.
 */
export function deepened(tiny: TinyCase, layers: number, options: LoadOptions): TinyCase {
  const names = Object.keys(goldenOf(tiny).tensors);
  const own = 1 + Math.max(...names.map((name) => Number(LAYER.exec(name)?.[2] ?? -1)));
  const more = layers - own;
  for (let choice = 0; choice < own ** more; choice++) {
    const like = Array.from({ length: more }, (_, i) => {
      return (own + i + Math.floor(choice / own ** i)) % own;
    });
    const deeper = withLayers(tiny, own, like);
    if (loads(deeper, options)) return deeper;
  }
  throw new LoadError(`${tiny.name}: no choice of layers fits its configuration`);
}

/** With more layers behind its own, each like one of these. */
function withLayers(tiny: TinyCase, own: number, like: readonly number[]): TinyCase {
  const { config, file_config, quantization, extra = {} } = tiny;
  // What predicts further tokens is behind the last layer.
  const behindLast = Object.entries(extra).map(([name, shape]) => {
    const [, before, number, behind] = LAYER.exec(name) ?? [];
    return [number ? `${before}${Number(number) + like.length}${behind}` : name, shape];
  });
  return {
    ...tiny,
    tensors: repeated(goldenOf(tiny).tensors, own, like),
    extra: Object.fromEntries(behindLast),
    config: longer(config, own, like) as TinyCase["config"],
    ...(file_config && { file_config: longer(file_config, own, like) }),
    ...(quantization && { quantization: repeated(quantization, own, like) }),
  };
}

/** What is there by the names of layers, of the further ones too. */
function repeated<T extends Json>(named: T, own: number, like: readonly number[]): T {
  const more = Object.entries(named).flatMap(([name, value]) => {
    const [, before, number, behind] = LAYER.exec(name) ?? [];
    const at = like.flatMap((each, i) => (each === Number(number) ? own + i : []));
    return at.map((layer) => [`${before}${layer}${behind}`, value]);
  });
  return { ...named, ...Object.fromEntries(more) };
}

function longer(config: Json, own: number, like: readonly number[]): Json {
  const entries = Object.entries(config).map(([key, value]) => {
    if (COUNTS.includes(key)) return [key, own + like.length];
    if (NOT_BY_LAYER.includes(key)) return [key, value];
    if (Array.isArray(value) && value.length === own)
      return [key, [...value, ...like.map((layer) => value[layer])]];
    const isObject = value !== null && typeof value === "object" && !Array.isArray(value);
    return [key, isObject ? longer(value as Json, own, like) : value];
  });
  return Object.fromEntries(entries);
}

function loads(tiny: TinyCase, options: LoadOptions): boolean {
  try {
    loadTinyModel(tiny, options).free();
    return true;
  } catch (error) {
    if (error instanceof LoadError) return false;
    throw error;
  }
}
