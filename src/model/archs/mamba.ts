// Mamba and Falcon Mamba: only recurrent layers.
import type { MlxArray } from "../../mlx/array.ts";
import { count, flag, positive, withoutAttention } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { mambaKeys, mambaMixer, mambaSizes } from "../layers/mamba-layers.ts";
import { mixersOnly } from "./mamba2.ts";

export const mamba = family({
  config: {
    ...withoutAttention,
    ...mambaKeys,
    intermediate_size: count,
    use_bcdt_rms: flag.default(false),
    mixer_rms_eps: positive.default(1e-6),
  },
  defaults: { rms_norm_eps: 1e-5, tie_word_embeddings: true, max_position_embeddings: 1_048_576 },
  keys: { rms_norm_eps: "layer_norm_epsilon" },
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
