// GPT-J: attention and MLP beside each other behind one layer norm, and neighbours that rotate together.
import { LoadError } from "../../files/load-error.ts";
import { count, headsOf } from "../config.ts";
import { family } from "../family.ts";
import { gptConfig, gptKeys, gptMasks, gptMlp } from "./gpt2.ts";

export const gptj = family({
  config: {
    ...gptConfig,
    /** Features of each head that rotate: all of them if null. */
    rotary_dim: count.nullish(),
  },
  keys: gptKeys,
  leftOut: gptMasks,
  names: { ".attn.": ".self_attn." },
  design: (config) => {
    const { headDim } = headsOf(config);
    if (config.rotary_dim && config.rotary_dim > headDim) {
      throw new LoadError(`config.json: rotary_dim: heads have ${headDim} features`);
    }
    return {
      ...gptMlp(config),
      rotaryDims: config.rotary_dim,
      isParallel: true,
      norms: { attention: "input_layernorm" },
      rotatesNeighbours: true,
    };
  },
});
