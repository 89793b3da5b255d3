// RWKV 7 (Goose): a recurrent state per head, no attention.
import { add } from "../../mlx/ops.ts";
import { withoutAttention } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import type { Crossing } from "../layers/crossings.ts";
import { type AnyNorm, layerNorm } from "../layers/layers.ts";
import { channelMixer, rwkvKeys, timeMixer } from "../layers/rwkv-layers.ts";

export const rwkv7 = family({
  config: { ...withoutAttention, ...rwkvKeys },
  defaults: { rms_norm_eps: 1e-5, tie_word_embeddings: false, max_position_embeddings: 1_048_576 },
  keys: { rms_norm_eps: "norm_eps" },
  // Drops layer 0's matrices for mixing in the first layer's values: some files have them, but only later layers mix.
  leftOut: /^model\.layers\.0\.attn\.v_lora\./,
  design: (config, weights) => {
    const { hidden_size: dims, num_hidden_layers: layers, rms_norm_eps: eps } = config;
    const makeNorm = (name: string) => layerNorm(weights, name, dims, eps);
    // Values of the first layer, which later layers mix into their own.
    const first: Crossing = { from: 0, to: layers - 1, width: dims };
    return {
      makeNorm,
      crossings: [first],
      layer: (name, layer, states) => {
        const before: AnyNorm = layer === 0 ? makeNorm(`${name}.pre_norm`) : (x) => x;
        const timeNorm = makeNorm(`${name}.attn_norm`);
        const channelNorm = makeNorm(`${name}.ffn_norm`);
        const mixTime = timeMixer(config, weights, `${name}.attn`, layer, states, first);
        const mixChannels = channelMixer(config, weights, `${name}.ffn`, states);
        return (input, step) => {
          const x = before(input);
          const h = add(x, mixTime(timeNorm(x), step));
          return add(h, mixChannels(channelNorm(h), step));
        };
      },
    };
  },
});
