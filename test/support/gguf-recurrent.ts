// What llama.cpp's converter does to tiny models with recurrent layers.

import type { FileTensor } from "../../src/self-test/tiny-weights.ts";
import {
  addToNorms,
  below,
  type Conversion,
  eachOf,
  exchanged,
  floats,
  inTurn,
  nameExperts,
  numbersIn,
  pairHeads,
  part,
  regrouped,
  rename,
  type Tensors,
} from "./gguf-conversion.ts";

/** Rates in place of their logarithms, and convolutions (channels, taps). */
function recurrentLayers(all: Tensors): void {
  eachOf(all, /ssm_a$/, rates);
  eachOf(all, /(ssm_conv1d|shortconv\.conv)\.weight$/, ({ shape, ...rest }) => {
    return { ...rest, shape: shape.slice(0, 2) };
  });
}

/** Mamba 2's vectors have an axis more, and its norm has one of groups. */
function mamba2Layers(groups: number): (all: Tensors) => void {
  return (all) => {
    recurrentLayers(all);
    eachOf(all, /ssm_[ad]$/, (tensor) => ({ ...tensor, shape: [...tensor.shape, 1] }));
    eachOf(all, /ssm_norm/, (tensor) => {
      return { ...tensor, shape: [groups, tensor.shape[0]! / groups] };
    });
  };
}

/** Sizes of recurrent layers, whose convolutions have 4 taps. */
const ssm = (state: number, rank: number, inner: number) => ({
  "ssm.conv_kernel": 4,
  "ssm.state_size": state,
  "ssm.time_step_rank": rank,
  "ssm.inner_size": inner,
});

/** Of the tiny models with Mamba 2. */
const mamba2Sizes = (groups: number) => ({ ...ssm(32, 8, 128), "ssm.group_count": groups });

const kvHeads = (...counts: number[]) => ({ "attention.head_count_kv": Int32Array.from(counts) });
const normEps = (eps: number) => ({ "attention.layer_norm_rms_epsilon": eps });

/** Of Kimi's delta and latent attention. */
const KIMI = {
  "attention.key_length_mla": 48,
  "attention.value_length_mla": 32,
  "rope.dimension_count": 16,
  "ssm.conv_kernel": 4,
};

/** Of the models without attention. */
const NO_HEADS = { feed_forward_length: 0, "attention.head_count": 0 };

const GRANITE = { embedding_scale: 4, residual_scale: 0.5, "attention.scale": 0.125 };

function nemotronExperts(all: Tensors): void {
  rename(all, /^backbone\.layers\.(\d+)\.mixer\.switch_mlp\.fc1\./, "blk.$1.ffn_up_exps.");
  rename(all, /^backbone\.layers\.(\d+)\.mixer\.switch_mlp\.fc2\./, "blk.$1.ffn_down_exps.");
}

function rates(tensor: FileTensor): FileTensor {
  return { ...floats(numbersIn(tensor).map((x) => -Math.exp(x))), shape: tensor.shape };
}

/** Convolutions of queries, keys and values, as Kimi's converter has them. */
function apartConvolutions(all: Tensors): void {
  eachOf(all, /ssm_conv1d_[qkv]/, ({ shape: [channels, taps], ...rest }) => {
    return { ...rest, shape: [1, channels!, 1, taps!] };
  });
}

/** A matrix for each of queries, keys and values, and a convolution. */
function splitKimi(all: Tensors): void {
  for (const [name, tensor] of [...all]) {
    const [, layer, kind] = /layers\.(\d+)\.self_attn\.qkv_(proj|conv)\./.exec(name) ?? [];
    if (!layer) continue;
    all.delete(name);
    for (const [i, own] of ["q", "k", "v"].entries()) {
      const named = kind === "proj" ? `attn_${own}` : `ssm_conv1d_${own}`;
      all.set(`blk.${layer}.${named}.weight`, part(tensor, i, 3));
    }
  }
}

/** The norms and directions of mixtures as one. */
function fuseMixtures(all: Tensors): void {
  for (const [name, norm] of [...all]) {
    if (!name.endsWith("_res_norm.weight")) continue;
    const direction = name.replace("_norm", "_proj");
    const factors = numbersIn(all.get(direction)!);
    all.delete(name);
    all.delete(direction);
    const [, layer, own] = /layers\.(\d+)\.(\w+)_res_norm/.exec(name) ?? [];
    const named = own === "mlp" ? `blk.${layer}.ffn` : own ? `blk.${layer}.attn` : "output";
    const product = numbersIn(norm).map((x, i) => x * factors[i]!);
    all.set(`${named}_res_score.weight`, floats(product));
  }
}

/** Of the tiny Qwens' delta nets. */
const DELTA_NET = { ...ssm(32, 4, 128), "ssm.group_count": 2, "rope.dimension_count": 8 };

/** (key heads, query and key and values and gates) as all queries, keys and values, and all gates. */
function splitDeltaNet(all: Tensors): void {
  for (const [name, tensor] of [...all]) {
    const [, layer] = /^blk\.(\d+)\.ssm_in\.weight$/.exec(name) ?? [];
    if (!layer) continue;
    // A key head has 32 rows of queries, 32 of keys, 64 of values and 64 of gates.
    const runs = (at: number, count: number) =>
      [0, 1].flatMap((head) =>
        Array.from({ length: count }, (_, i) => part(tensor, head * 6 + at + i, 12)),
      );
    all.delete(name);
    all.set(`blk.${layer}.attn_qkv.weight`, below([...runs(0, 1), ...runs(1, 1), ...runs(2, 2)]));
    all.set(`blk.${layer}.attn_gate.weight`, below(runs(4, 2)));
  }
}

/** Values of each key head side by side become the first of each key head, then the second of each. */
function tileHeads(all: Tensors): void {
  const tile = (tensor: FileTensor) => regrouped(tensor, 2, 2);
  eachOf(all, /(attn_gate|ssm_alpha|ssm_beta)\.weight$|ssm_dt\.bias$|ssm_a$/, tile);
  eachOf(all, /(attn_qkv|ssm_conv1d)\.weight$/, (tensor) =>
    below([part(tensor, 0, 2), tile(part(tensor, 1, 2))]),
  );
  eachOf(all, /ssm_out\.weight$/, (tensor) => exchanged(tile(exchanged(tensor))));
}

export const recurrent: Record<string, Conversion> = {
  bailing_moe_v3: {
    metadata: {
      ...kvHeads(0, 0, 1),
      "attention.key_length": 48,
      ...KIMI,
      "kda.head_dim": 32,
      "kda.safe_gate": true,
      "kda.gate_lower_bound": Float32Array.of(-5),
      expert_gating_func: 2,
      expert_weights_scale: 2.5,
      expert_weights_norm: true,
      expert_shared_feed_forward_length: 32,
    },
    change: (all) => {
      // These rates are positive.
      eachOf(all, /ssm_a$/, (tensor) => {
        return { ...floats(numbersIn(tensor).map(Math.exp)), shape: [4, 1] };
      });
      apartConvolutions(all);
      rename(all, /^model\.layers\.(\d+)\.attention\.f_proj\./, "blk.$1.ssm_f_a.");
      rename(all, /^model\.layers\.2\.attention\.g_proj\./, "blk.2.attn_gate.");
      rename(all, /^model\.layers\.(\d+)\.attention\.g_proj\./, "blk.$1.ssm_g_a.");
    },
  },
  "falcon_h1-gated": { metadata: mamba2Sizes(1), change: mamba2Layers(1) },
  "falcon_h1-untied": { metadata: mamba2Sizes(2), change: mamba2Layers(2) },
  falcon_mamba: {
    metadata: { ...NO_HEADS, ...normEps(1e-5), ...ssm(16, 4, 96), "ssm.dt_b_c_rms": true },
    change: recurrentLayers,
  },
  granitemoehybrid: {
    metadata: {
      ...GRANITE,
      ...mamba2Sizes(2),
      logit_scale: 0.25,
      ...kvHeads(0, 2, 0, 0),
      "rope.scaling.finetuned": false,
      expert_shared_feed_forward_length: 96,
    },
    change: (all) => {
      mamba2Layers(2)(all);
      nameExperts(all);
      pairHeads(all);
      for (const [name, both] of [...all]) {
        const [, layer] = /^model\.layers\.(\d+)\.shared_mlp\.input_linear\./.exec(name) ?? [];
        if (!layer) continue;
        all.delete(name);
        all.set(`blk.${layer}.ffn_gate_shexp.weight`, part(both, 0, 2));
        all.set(`blk.${layer}.ffn_up_shexp.weight`, part(both, 1, 2));
      }
    },
  },
  "granitemoehybrid-dense": {
    metadata: {
      ...GRANITE,
      ...mamba2Sizes(1),
      logit_scale: 0.5,
      ...kvHeads(0, 2, 0),
      "rope.freq_base": 5000,
      "rope.scaling.finetuned": true,
    },
    change: inTurn(mamba2Layers(1), pairHeads),
  },
  jamba: { metadata: { ...kvHeads(0, 0, 2, 0), ...ssm(16, 4, 128) }, change: recurrentLayers },
  kimi_k3: {
    metadata: {
      ...kvHeads(0, 0, 1, 0),
      "attention.key_length": 80,
      ...KIMI,
      "kda.head_dim": 16,
      "kda.gate_lower_bound": Float32Array.of(-5),
      "activation.situ_beta": 2,
      "activation.situ_linear_beta": 3,
      "attn_res.block_size": 2,
      expert_used_count: 2,
      expert_gating_func: 2,
      expert_group_count: 2,
      expert_latent_length: 32,
    },
    change: (all) => {
      splitKimi(all);
      recurrentLayers(all);
      apartConvolutions(all);
      fuseMixtures(all);
      rename(all, /^blk\.([013])\.attn_gate\./, "blk.$1.ssm_g.");
    },
  },
  kimi_linear: {
    metadata: {
      context_length: 256,
      ...kvHeads(0, 0, 1, 0),
      "attention.key_length": 80,
      ...KIMI,
      "kda.head_dim": 32,
      expert_used_count: 2,
      expert_gating_func: 2,
      expert_group_count: 4,
    },
    change: inTurn(recurrentLayers, apartConvolutions),
  },
  lfm2: {
    metadata: {
      ...normEps(1e-5),
      ...kvHeads(0, 0, 2, 0),
      feed_forward_length: 128,
      "shortconv.l_cache": 3,
    },
    change: recurrentLayers,
  },
  lfm2_moe: {
    metadata: {
      ...normEps(1e-5),
      ...kvHeads(0, 0, 2, 0),
      "shortconv.l_cache": 3,
      expert_gating_func: 2,
    },
    change: recurrentLayers,
  },
  mamba: {
    metadata: { ...NO_HEADS, ...normEps(1e-5), ...ssm(16, 8, 96), "ssm.dt_b_c_rms": false },
    change: recurrentLayers,
  },
  mamba2: {
    metadata: { ...NO_HEADS, ...mamba2Sizes(2), ...normEps(1e-3) },
    change: mamba2Layers(2),
  },
  nemotron_h: {
    metadata: {
      ...mamba2Sizes(2),
      block_count: 6,
      ...normEps(1e-5),
      "attention.key_length": 16,
      ...kvHeads(0, 0, 2, 0, 0, 0),
      feed_forward_length: Int32Array.of(0, 96, 0, 0, 64, 0),
      expert_shared_feed_forward_length: 96,
      expert_weights_norm: true,
    },
    change: inTurn(mamba2Layers(2), nemotronExperts),
  },
  "nemotron_h-dense": {
    metadata: {
      ...mamba2Sizes(2),
      block_count: 4,
      ...normEps(1e-5),
      "attention.key_length": 16,
      ...kvHeads(0, 0, 2, 0),
      feed_forward_length: Int32Array.of(0, 96, 0, 0),
    },
    change: mamba2Layers(2),
  },
  "nemotron_h-super": {
    metadata: {
      ...mamba2Sizes(2),
      block_count: 4,
      ...normEps(1e-5),
      "attention.key_length": 16,
      ...kvHeads(0, 0, 2, 0),
      feed_forward_length: Int32Array.of(0, 64, 0, 64),
      expert_shared_feed_forward_length: 96,
      expert_weights_norm: true,
      moe_latent_size: 32,
    },
    change: inTurn(mamba2Layers(2), nemotronExperts),
  },
  plamo2: {
    metadata: {
      "attention.head_count": Int32Array.of(0, 4, 0),
      ...kvHeads(0, 2, 0),
      "attention.key_length": 32,
      "attention.value_length": 32,
      ...ssm(32, 4, 128),
      "ssm.group_count": 0,
    },
    change: (all) => {
      recurrentLayers(all);
      addToNorms(all, (name) => {
        if (/_(dt|b|c|q|k)_norm/.test(name)) return 0;
        if (name.includes("post_attention_norm")) return 1 / 5;
        return name.includes("post_ffw_norm") ? 1 / 5 ** 1.5 : 1;
      });
    },
  },
  "qwen3_next-experts": {
    metadata: { ...DELTA_NET, full_attention_interval: 2 },
    change: inTurn(recurrentLayers, splitDeltaNet),
  },
  qwen3_5: {
    metadata: { ...DELTA_NET, full_attention_interval: 2, "rope.freq_base": 100_000 },
    change: inTurn(recurrentLayers, tileHeads),
  },
  qwen3_5_moe: {
    metadata: {
      ...DELTA_NET,
      full_attention_interval: 3,
      "rope.freq_base": 100_000,
      // Of a layer behind the last.
      block_count: 4,
      nextn_predict_layers: 1,
    },
    change: (all) => {
      recurrentLayers(all);
      tileHeads(all);
      for (const own of ["attn_q", "attn_norm", "nextn.eh_proj"]) {
        all.set(`blk.3.${own}.weight`, floats(new Float32Array(8)));
      }
    },
  },
  rwkv7: {
    metadata: {
      "attention.head_count": 0,
      "wkv.head_size": 64,
      "attention.decay_lora_rank": 32,
      "attention.iclr_lora_rank": 32,
      "attention.value_residual_mix_lora_rank": 32,
      "attention.gate_lora_rank": 32,
    },
    change: (all) => {
      for (const layer of [0, 1]) {
        const names = Array.from("rwkvag", (own) => `model.layers.${layer}.attn.x_${own}`);
        const shares = below(names.map((name) => all.get(name)!));
        all.set(`blk.${layer}.time_mix_lerp_fused.weight`, { ...shares, shape: [6, 1, 1, 128] });
        for (const name of names) all.delete(name);
      }
      rename(all, /(?<=(_k|_a))$/, ".weight");
      // The first layer has some that are not used.
      for (const number of [0, 1, 2]) {
        all.set(`blk.0.time_mix_v${number}.weight`, all.get(`blk.0.time_mix_a${number}.weight`)!);
      }
    },
  },
};
