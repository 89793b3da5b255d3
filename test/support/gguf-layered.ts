// What llama.cpp's converter does to tiny models whose layers are not all alike.
import {
  addToNorms,
  below,
  type Conversion,
  eachOf,
  floats,
  fuseExperts,
  llama3Factors,
  numbersIn,
  paired,
  rename,
} from "./gguf-conversion.ts";

/** Factors of what is not rotated, and the scale of a layer that keeps all. */
const [ENDLESS, NONE] = [1e30, -Infinity];

const rotatedFirst = (rotated: number, all: number, factor = 1) =>
  floats(Float32Array.from({ length: all }, (_, i) => (i < rotated ? factor : ENDLESS)));

/** Sizes of Gemma 4's heads, with a window and without. */
const GEMMA4 = {
  "attention.key_length": 32,
  "attention.value_length": 32,
  "attention.key_length_swa": 16,
  "attention.value_length_swa": 16,
  "rope.dimension_count": 32,
  "rope.dimension_count_swa": 16,
  "rope.freq_base": 1_000_000,
  "rope.freq_base_swa": 10_000,
};

/** YaRN by 4. */
const YARN = { "rope.scaling.type": "yarn", "rope.scaling.factor": 4 };

export const layered: Record<string, Conversion> = {
  exaone_moe: {
    metadata: {
      expert_gating_func: 2,
      "attention.sliding_window_pattern": [true, true, true, false],
      "rope.scaling.type": "none",
      expert_weights_scale: 2.5,
      expert_weights_norm: true,
      leading_dense_block_count: 1,
      // Of a layer behind the last.
      block_count: 5,
      nextn_predict_layers: 1,
    },
    change: (all) => all.set("blk.4.attn_norm.weight", floats(new Float32Array(64))),
  },
  "gemma3n-unclipped": {
    metadata: {
      feed_forward_length: Int32Array.of(96, 64, 96, 96, 96),
      embedding_length_per_layer_input: 32,
      "attention.shared_kv_layers": 2,
      "attention.sliding_window_pattern": [true, false, true, false, true],
      "rope.freq_base_swa": 10_000,
      final_logit_softcapping: 20,
      "altup.active_idx": 0,
      "altup.num_inputs": 4,
      // Quantiles of 0.8, 0.6 and 0.
      activation_sparsity_scale: Float32Array.of(0.841_621_2, 0.253_347_1, NONE, NONE, NONE),
    },
    change: (all) => {
      for (const [own, named] of [
        ["altup_projections", "altup_proj"],
        ["altup_unembed_projections", "altup_unembd_proj"],
      ] as const) {
        const names = [0, 1, 2].map((i) => `model.language_model.${own}.${i}.weight`);
        const stacked = below(names.map((name) => all.get(name)!));
        all.set(`${named}.weight`, { ...stacked, shape: [3, 64, 64] });
        for (const name of names) all.delete(name);
      }
    },
  },
  gemma4_text: {
    metadata: {
      feed_forward_length: Int32Array.of(96, 96, 96, 192, 192, 192),
      embedding_length_per_layer_input: 32,
      ...GEMMA4,
      "attention.shared_kv_layers": 3,
      "attention.sliding_window_pattern": [true, true, false, true, true, false],
      final_logit_softcapping: 20,
    },
    change: (all) => all.set("rope_freqs.weight", rotatedFirst(4, 16)),
  },
  "gemma4_text-experts": {
    metadata: {
      embedding_length_per_layer_input: 0,
      "attention.head_count_kv": Int32Array.of(2, 1, 2, 1),
      ...GEMMA4,
      "attention.shared_kv_layers": 0,
      "attention.sliding_window_pattern": [true, false, true, false],
      expert_used_count: 2,
    },
    change: (all) => {
      // The converter knows no other factor than 1.
      all.set("rope_freqs.weight", rotatedFirst(8, 16, 2));
      rename(all, /^model\.layers\.(\d+)\.router\.scale$/, "blk.$1.ffn_gate_inp.scale");
      rename(all, /^model\.layers\.(\d+)\.router\.per_expert_scale$/, "blk.$1.ffn_down_exps.scale");
      const experts = /^model\.layers\.(\d+)\.experts\.switch_glu\.(\w+)_proj\./;
      rename(all, experts, "blk.$1.ffn_$2_exps.");
      fuseExperts(all);
    },
  },
  "laguna-xs": {
    metadata: {
      "attention.head_count": Int32Array.of(4, 6, 6),
      "rope.dimension_count": 16,
      "rope.dimension_count_swa": 32,
      "rope.freq_base": 50_000,
      "rope.freq_base_swa": 10_000,
      ...YARN,
      "rope.scaling.original_context_length": 32,
      "rope.scaling.yarn_beta_fast": 8,
      "rope.scaling.yarn_beta_slow": 1,
      expert_weights_scale: 2.5,
      expert_gating_func: 2,
      leading_dense_block_count: 1,
    },
  },
  "llama4-scout": {
    metadata: {
      feed_forward_length: 96,
      expert_feed_forward_length: 64,
      interleave_moe_layer_step: 2,
    },
    change: (all) => {
      const scaling = { base: 500_000, factor: 8, low: 1, high: 4, context: 64 };
      all.set("rope_freqs.weight", floats(llama3Factors(16, scaling)));
    },
  },
  mellum: {
    metadata: {
      "attention.sliding_window_pattern": [true, false],
      "rope.freq_base": 1_000_000,
      "rope.freq_base_swa": 10_000,
      ...YARN,
      "rope.scaling.original_context_length": 64,
    },
  },
  mimo_v2_flash: {
    metadata: {
      "attention.head_count_kv": Int32Array.of(2, 4, 4, 2),
      "attention.value_length": 16,
      "attention.sliding_window": 11,
      "attention.sliding_window_pattern": [false, true, true, false],
      "attention.layer_norm_rms_epsilon": 1e-5,
      "attention.value_scale": 0.7,
      "rope.dimension_count": 16,
      "rope.freq_base_swa": 10_000,
    },
  },
  muse_glimmer: {
    metadata: {
      "attention.sliding_window_pattern": [true, true, true, false],
      final_logit_softcapping: 5,
      logit_scale: 0.7,
    },
    change: (all) => {
      addToNorms(all, (name) => (name.startsWith("blk.") ? 1 : 0));
      eachOf(all, /attn_[qk]\./, (tensor) => paired(tensor, tensor.shape[0]! / 32));
      for (const layer of [0, 1, 2, 3]) {
        all.set(`blk.${layer}.attn_q_norm.weight`, floats(new Float32Array(32).fill(2)));
        all.set(`blk.${layer}.attn_k_norm.weight`, floats(new Float32Array(32).fill(1)));
      }
    },
  },
  step3p5: {
    metadata: {
      "attention.head_count": Int32Array.of(4, 6, 6, 4),
      "attention.head_count_kv": Int32Array.of(2, 2, 2, 2),
      "attention.sliding_window_pattern": [false, true, true, false],
      "rope.freq_base": 50_000,
      "rope.freq_base_swa": 10_000,
      expert_count: 8,
      expert_used_count: 2,
      expert_shared_feed_forward_length: 64,
      swiglu_clamp_exp: Float32Array.of(0, 0, 0.5, 0),
      swiglu_clamp_shexp: Float32Array.of(0.4, 0, 0, 0.5),
    },
    change: (all) => {
      // Of the half of each head that is rotated, and 1 for the others.
      const scaling = { base: 50_000, factor: 2, low: 1, high: 32, context: 128 };
      const factors = [...llama3Factors(16, scaling), ...new Float32Array(8).fill(1)];
      all.set("rope_freqs.weight", floats(Float32Array.from(factors)));
    },
  },
  talkie: {
    change: (all, metadata) => {
      metadata["talkie.logit_scale"] = numbersIn(all.get("lm_head_gain.w_g")!)[0]!;
      all.delete("lm_head_gain.w_g");
      rename(all, /^model\.blocks\.(\d+)\.attn_gain\.a_g$/, "blk.$1.attn_output.scale");
      rename(all, /^model\.blocks\.(\d+)\.mlp_gain\.a_g$/, "blk.$1.ffn_down.scale");
      eachOf(all, /attn_q_norm$/, (tensor) => ({ ...tensor, shape: [4, 1] }));
      // The second half of each head of 16 rows of 64 numbers.
      eachOf(all, /attn_[qk]\./, (tensor) => {
        const signed = numbersIn(tensor).map((x, i) => (Math.floor(i / 64) % 16 < 8 ? x : -x));
        return { ...floats(signed), shape: tensor.shape };
      });
    },
  },
};
