// Ministral 3: Mistral with queries scaled by position.
import { count, positive, RopeScaling, real } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { withTemperature } from "../layers/head-changes.ts";

export const ministral3 = family({
  config: {
    rope_theta: positive,
    rope_scaling: RopeScaling.extend({
      llama_4_scaling_beta: real,
      original_max_position_embeddings: count,
    }),
  },
  design: ({ rope_scaling }) => {
    const { llama_4_scaling_beta: scale, original_max_position_embeddings: every } = rope_scaling;
    return {
      slides: () => true,
      around: (attend, { sizes }) =>
        withTemperature(attend, sizes.heads * sizes.headDim, { scale, every, first: 0 }),
    };
  },
});
