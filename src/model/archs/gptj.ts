// GPT-J: attention and MLP in parallel after one layer norm; neighbouring features rotate together.
import { LoadError } from "../../files/load-error.ts";
import { count, headsOf } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { gpt } from "./gpt2.ts";

export const gptj = family({
  like: gpt,
  config: {
    /** Number of rotary features per head; null for all. */
    rotary_dim: count.nullish(),
  },
  names: { ".attn.": ".self_attn." },
  design: ({ rotary_dim, ...config }) => {
    const { headDim } = headsOf(config);
    if (rotary_dim && rotary_dim > headDim) {
      throw new LoadError(`config.json: rotary_dim: heads have ${headDim} features`);
    }
    return {
      isParallel: true,
      norms: { attention: "input_layernorm" },
      rotaryDims: rotary_dim,
      rotatesNeighbours: true,
    };
  },
});
