// Mamba and Falcon Mamba: recurrent layers and nothing else.
import { z } from "zod";
import type { MlxArray } from "../../mlx/array.ts";
import { count, positive } from "../config.ts";
import { family } from "../family.ts";
import { mambaKeys, mambaMixer, mambaSizes } from "../mamba-layers.ts";
import { backboneNames, mixersOnly } from "./mamba2.ts";

export const mamba = family({
  config: {
    ...mambaKeys,
    num_attention_heads: count.default(1),
    intermediate_size: count,
    rms_norm_eps: positive.default(1e-5),
    use_bcdt_rms: z.boolean().default(false),
    mixer_rms_eps: positive.default(1e-6),
    tie_word_embeddings: z.boolean().default(true),
    max_position_embeddings: count.default(1_048_576),
  },
  keys: { rms_norm_eps: "layer_norm_epsilon" },
  names: backboneNames,
  design: ({ model_type, use_bcdt_rms, mixer_rms_eps, ...config }, weights) => {
    const sizes = mambaSizes(config, config.intermediate_size);
    const isNormed = use_bcdt_rms || model_type === "falcon_mamba";
    const plain = (x: MlxArray) => weights.device.rmsNorm(x, undefined, mixer_rms_eps);
    const norms = isNormed ? { steps: plain, keys: plain, queries: plain } : undefined;
    return {
      ...mixersOnly,
      mix: (name, _, states) => mambaMixer(weights, name, states, sizes, norms),
    };
  },
});
