// PLaMo 3: norms before and behind attention and MLP, which are stored as their distance from a number of their own,
// and a window in most layers, with positions of its own.
import { z } from "zod";
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import { rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { makeRope } from "../rope.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  rope_theta: z.number().positive().default(1_000_000),
  rope_local_theta: z.number().positive().default(10_000),
  /** How many tokens before its own a token sees. */
  sliding_window: z.int().positive().default(2048),
  sliding_window_pattern: z.int().positive().default(8),
  /** GGUF files keep norms as they are used: their configuration says 0. */
  norm_offset: z.number().default(1),
});

/** Of what a branch is before it is added. */
const smallNorms: Readonly<Record<string, number>> = {
  post_mixer_norm: 1 / 5,
  post_mlp_norm: 1 / 5 ** 1.5,
};

export function plamo3(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config, { sliding_window: "window_size" });
  const { hidden_size: dims, rms_norm_eps: eps, norm_offset: offset } = parsed;
  const { headDim } = headsOf(parsed);
  const near = makeRope(weights, { dims: headDim, base: parsed.rope_local_theta });
  weights.renameParts({ "model.layers.layers.": "model.layers.", ".mixer.": ".self_attn." });
  const headNorm = (name: string) => rmsNorm(weights, name, headDim, eps, offset);
  return transformer({ ...parsed, sliding_window: parsed.sliding_window + 1 }, weights, {
    makeNorm: (name) => {
      const own = smallNorms[name.split(".").at(-1)!] ?? 1;
      return rmsNorm(weights, name, dims, eps, own * offset);
    },
    norms: {
      attention: "pre_mixer_norm",
      afterAttention: "post_mixer_norm",
      mlp: "pre_mlp_norm",
      afterMlp: "post_mlp_norm",
    },
    slides: (layer) => (layer + 1) % parsed.sliding_window_pattern !== 0,
    rope: (whole, window) => (window === undefined ? whole() : near),
    parts: (name) => ({ qNorm: headNorm(`${name}.q_norm`), kNorm: headNorm(`${name}.k_norm`) }),
  });
}
