// Declares an architecture: its own configuration keys, its tensor names, and its design.
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

/** The parsed configuration: the common keys and the family's own. */
export type ConfigOf<S extends Shape> = z.infer<ReturnType<typeof extended<S>>>;

export type Family<S extends Shape, B extends Shape> = {
  /** The family to inherit from, if not Llama. */
  like?: FamilyArchitecture<B>;
  config?: S;
  /** Values for keys that a configuration leaves out. */
  defaults?: Defaults;
  /** Maps our keys to the family's names for them. */
  keys?: Keys;
  /** Names of tensors that the model ignores. */
  leftOut?: RegExp;
  /** Replacements in tensor names, applied in order after the common ones. */
  names?: Readonly<Record<string, string>>;
  /** Makes the design. `base` is the design that the family in `like` makes. */
  design?: (config: ConfigOf<Both<B, S>>, weights: Weights, base: Design) => Design;
};

/** An architecture that others can inherit from. */
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
    if (whole.leftOut) weights.stored.leaveOut(whole.leftOut);
    weights.stored.renameEach(commonName);
    weights.stored.renameParts(whole.names);
    const design = whole.design(parsed, weights);
    // `design.config` replaces common keys whose meaning differs in this family.
    return transformer({ ...(parsed as BaseConfig), ...design.config }, weights, design);
  };
  return Object.assign(architecture, { family: whole });
}

const Wrapped = z.looseObject({ text_config: z.looseObject({}) });

/** model_type that we give to a text_config without one. */
export const TEXT = "text";

/** Names of tensors of vision and audio towers. */
const TOWERS =
  /^(model\.)?(visual|vision_tower|vision_model|vision_encoder|vision_adapter|vision_embedder|vision_projection|embed_vision|audio_tower|embed_audio|multi_modal_projector|mm_projector|patch_merger|image_newline)\b/;

/**
 * Loads only the text decoder of a multimodal model, from text_config and, for keys that it lacks, the outer
 * configuration. With `isBare`, a configuration without text_config is the decoder's own.
 */
export function textPart(text: Architecture, { isBare = false } = {}): Architecture {
  return (config, weights) => {
    const isWrapped = !isBare || Wrapped.safeParse(config).success;
    weights.stored.leaveOut(TOWERS);
    if (!isWrapped) return text(config, weights);
    const { text_config, ...outside } = parseConfig(Wrapped, config);
    const [outer, inner] = [outside.tie_word_embeddings, text_config.tie_word_embeddings];
    // transformers 5 reads the outer tie_word_embeddings, earlier versions the inner one. If they differ, files with
    // lm_head are untied.
    const tied =
      outer != null && inner != null && outer !== inner
        ? { tie_word_embeddings: !weights.stored.hasAny(/\blm_head\.weight$/) }
        : {};
    return text({ ...outside, model_type: TEXT, ...text_config, ...tied }, weights);
  };
}
