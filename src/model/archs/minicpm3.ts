// MiniCPM 3: MiniCPM with latent attention; feature i rotates with i + D / 2.
import { count } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { latentKeys, latentLayers } from "../layers/latent-layers.ts";
import { neighbours } from "../layers/qkv.ts";
import { minicpm } from "./minicpm.ts";

export const minicpm3 = family({
  like: minicpm,
  config: { ...latentKeys, q_lora_rank: count, v_head_dim: count.nullish() },
  design: (config, weights) => {
    const { hidden_size: dims, num_attention_heads: heads, q_lora_rank, kv_lora_rank } = config;
    const { qk_rope_head_dim: rotary, qk_nope_head_dim: plain } = config;
    const sizes = { ...config, v_head_dim: config.v_head_dim ?? dims / heads };
    const attention = latentLayers(sizes, weights);
    return {
      mix: (name, layer, states) => {
        const [queries, latents] = [`${name}.q_b_proj`, `${name}.kv_a_proj_with_mqa`];
        weights.matrices.check(queries, [heads * (plain + rotary), q_lora_rank]);
        weights.matrices.reorder(queries, neighbours(heads, plain, rotary));
        weights.matrices.check(latents, [kv_lora_rank + rotary, dims]);
        weights.matrices.reorder(latents, neighbours(1, kv_lora_rank, rotary));
        return attention(name, layer, states);
      },
    };
  },
});
