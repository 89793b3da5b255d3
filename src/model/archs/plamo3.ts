// PLaMo 3: norms before and after attention and MLP, stored as offsets from constants. Most layers have a window and
// a RoPE of their own.
import { type BaseConfig, count, positive } from "../checkpoint/config.ts";
import type { Design } from "../design/design.ts";
import { family } from "../design/family.ts";
import { rmsNorm } from "../layers/layers.ts";
import type { Weights } from "../weights/weights.ts";

export const plamo3 = family({
  config: {
    rope_local_theta: positive.default(10_000),
    /** Window length without the current token, for which `design` adds 1. */
    sliding_window: count.default(2048),
    sliding_window_pattern: count.default(8),
  },
  defaults: { rope_theta: 1_000_000 },
  keys: { sliding_window: "window_size" },
  names: { ".mixer.": ".self_attn." },
  design: (config, weights) => ({
    ...plamoNorms(weights, config),
    config: { sliding_window: config.sliding_window + 1 },
    normOffset: 1,
    headNorms: ["q_norm", "k_norm"],
    slides: (layer) => (layer + 1) % config.sliding_window_pattern !== 0,
    localRopeBase: config.rope_local_theta,
  }),
});

/** Makes norms. Files store their weights minus a constant: 1/5 after mixers, 1/5 ** 1.5 after MLPs, else 1. */
export function plamoNorms(
  weights: Weights,
  { rms_norm_eps: eps, norm_offset }: Pick<BaseConfig, "rms_norm_eps" | "norm_offset">,
): Design {
  const small = new Map([
    ["post_mixer_norm", 1 / 5],
    ["post_mlp_norm", 1 / 5 ** 1.5],
  ]);
  return {
    makeNorm: (name, dims) => {
      const near = small.get(name.split(".").at(-1)!) ?? 1;
      return rmsNorm(weights, name, dims, eps, near * (norm_offset ?? 1));
    },
    norms: {
      attention: "pre_mixer_norm",
      afterAttention: "post_mixer_norm",
      mlp: "pre_mlp_norm",
      afterMlp: "post_mlp_norm",
    },
  };
}
