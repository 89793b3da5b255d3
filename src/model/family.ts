// What an architecture's file says: the keys of its configuration that Llama has not, its names, and its design.
import { z } from "zod";
import { BaseConfig, type Defaults, type Keys, parseConfig } from "./config.ts";
import type { Design } from "./design.ts";
import type { Model } from "./model.ts";
import { useCommonNames } from "./names.ts";
import { transformer } from "./transformer.ts";
import type { Weights } from "./weights.ts";

export type Architecture = (config: unknown, weights: Weights) => Model;

const extended = <S extends z.ZodRawShape>(shape: S) => BaseConfig.extend(shape);

/** What the configuration says, with these keys beside those of all families. */
export type ConfigOf<S extends z.ZodRawShape> = z.infer<ReturnType<typeof extended<S>>>;

export type Family<S extends z.ZodRawShape> = {
  config?: S;
  /** What it is where the configuration leaves it out. */
  defaults?: Defaults;
  /** The keys it has for some of ours. */
  keys?: Keys;
  /** Tensors that no part of the model asks for, by the names in files. */
  leftOut?: RegExp;
  /** Parts of its tensors' names, and what they are here; one after the other, behind the common ones. */
  names?: Readonly<Record<string, string>>;
  design?: (config: ConfigOf<S>, weights: Weights) => Design;
};

export function family<S extends z.ZodRawShape = Record<never, never>>({
  config: shape,
  defaults,
  keys,
  leftOut,
  names,
  design,
}: Family<S>): Architecture {
  const schema = extended(shape ?? ({} as S));
  return (config, weights) => {
    const parsed = parseConfig(schema, config, keys, defaults) as ConfigOf<S>;
    if (leftOut) weights.leaveOut(leftOut);
    useCommonNames(weights);
    if (names) weights.renameParts(names);
    const own = design?.(parsed, weights) ?? {};
    // Where a family has other values for keys of ours, its design says what they mean.
    return transformer({ ...(parsed as BaseConfig), ...own.config }, weights, own);
  };
}

const Wrapped = z.looseObject({ text_config: z.looseObject({}) });

/** The type of a text part that does not say. */
export const TEXT = "text";

/** Tensors of what sees and hears. */
const TOWERS =
  /^(model\.)?(visual|vision_tower|vision_model|vision_encoder|vision_adapter|vision_embedder|vision_projection|embed_vision|audio_tower|embed_audio|multi_modal_projector|mm_projector|patch_merger|image_newline)\b/;

/**
 * Of files that also see or hear, the part that reads and writes text: its configuration is in text_config, and what
 * that leaves out is as outside. With `isBare`, it may be all there is.
 */
export function textPart(text: Architecture, { isBare = false } = {}): Architecture {
  return (config, weights) => {
    const isWrapped = !isBare || Wrapped.safeParse(config).success;
    weights.leaveOut(TOWERS);
    if (!isWrapped) return text(config, weights);
    const { text_config, ...outside } = parseConfig(Wrapped, config);
    return text({ ...outside, model_type: TEXT, ...text_config }, weights);
  };
}
