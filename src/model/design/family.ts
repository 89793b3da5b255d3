// What an architecture's file says: the keys of its configuration that Llama has not, its names, and its design.
import { z } from "zod";
import { BaseConfig, type Defaults, type Keys, parseConfig } from "../checkpoint/config.ts";
import type { Model } from "../contract/model.ts";
import type { Weights } from "../weights/weights.ts";
import type { Design } from "./design.ts";
import { commonName } from "./names.ts";
import { transformer } from "./transformer.ts";

export type Architecture = (config: unknown, weights: Weights) => Model;

type Shape = z.ZodRawShape;
type None = Record<never, never>;
type Both<B extends Shape, S extends Shape> = Omit<B, keyof S> & S;

const extended = <S extends Shape>(shape: S) => BaseConfig.extend(shape);

/** What the configuration says, with these keys beside those of all families. */
export type ConfigOf<S extends Shape> = z.infer<ReturnType<typeof extended<S>>>;

export type Family<S extends Shape, B extends Shape> = {
  /** The family that it differs from, in place of Llama: what it does not say is as there. */
  like?: FamilyArchitecture<B>;
  config?: S;
  /** What it is where the configuration leaves it out. */
  defaults?: Defaults;
  /** The keys it has for some of ours. */
  keys?: Keys;
  /** Tensors that no part of the model asks for, by the names in files. */
  leftOut?: RegExp;
  /** Parts of its tensors' names, and what they are here; one after the other, behind the common ones. */
  names?: Readonly<Record<string, string>>;
  /** `base` is what the family that it is like has. */
  design?: (config: ConfigOf<Both<B, S>>, weights: Weights, base: Design) => Design;
};

/** An architecture that others can be like: all that it and those before it say. */
export type FamilyArchitecture<S extends Shape> = Architecture & {
  readonly family: {
    config: S;
    defaults: Defaults;
    keys: Keys;
    leftOut: RegExp | undefined;
    names: Readonly<Record<string, string>>;
    design(config: unknown, weights: Weights): Design;
  };
};

export function family<S extends Shape = None, B extends Shape = None>(
  own: Family<S, B>,
): FamilyArchitecture<Both<B, S>> {
  const base = own.like?.family;
  const whole: FamilyArchitecture<Both<B, S>>["family"] = {
    config: { ...base?.config, ...own.config } as Both<B, S>,
    defaults: { ...base?.defaults, ...own.defaults },
    keys: { ...base?.keys, ...own.keys },
    leftOut: own.leftOut ?? base?.leftOut,
    names: { ...base?.names, ...own.names },
    design: (config, weights) => {
      const first = base?.design(config, weights) ?? {};
      const then = own.design?.(config as ConfigOf<Both<B, S>>, weights, first) ?? {};
      return { ...first, ...then, config: { ...first.config, ...then.config } };
    },
  };
  const schema = extended(whole.config);
  const architecture: Architecture = (config, weights) => {
    const parsed = parseConfig(schema, config, whole.keys, whole.defaults);
    if (whole.leftOut) weights.leaveOut(whole.leftOut);
    weights.renameEach(commonName);
    weights.renameParts(whole.names);
    const design = whole.design(parsed, weights);
    // Where a family has other values for keys of ours, its design says what they mean.
    return transformer({ ...(parsed as BaseConfig), ...design.config }, weights, design);
  };
  return Object.assign(architecture, { family: whole });
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
    const [outer, inner] = [outside.tie_word_embeddings, text_config.tie_word_embeddings];
    // transformers 5 ties by the outer key, earlier versions by the inner one. If they differ, the file tells.
    const tied =
      outer != null && inner != null && outer !== inner
        ? { tie_word_embeddings: !weights.hasAny(/\blm_head\.weight$/) }
        : {};
    return text({ ...outside, model_type: TEXT, ...text_config, ...tied }, weights);
  };
}
