// Gemma 4's text decoder: layers with and without windows have heads of different sizes; some use keys as values;
// depending on the model, per-layer embeddings and last layers that read earlier layers' keys and values, or experts
// beside the MLP.
import { z } from "zod";
import type { Norm } from "../../device/device.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { add, multiply, take } from "../../mlx/ops.ts";
import {
  count,
  flag,
  headsOf,
  integer,
  kvOwnersOf,
  parseConfig,
  positive,
  RopeScaling,
  windowOf,
  word,
} from "../checkpoint/config.ts";
import { type LayerParts, normsAround } from "../design/design.ts";
import { type ConfigOf, family } from "../design/family.ts";
import { layerInputGate, layerInputs } from "../design/layer-inputs.ts";
import { arrangeExperts } from "../layers/expert-layouts.ts";
import { combined, router } from "../layers/experts.ts";
import { type Block, expertMlps, rmsNorm } from "../layers/layers.ts";
import type { Weights } from "../weights/weights.ts";
import { localRopeKeys } from "./gemma3-text.ts";

const keys = {
  ...localRopeKeys,
  num_attention_heads: count.default(8),
  num_key_value_heads: count.default(1),
  /** KV heads of layers without a window, if these use keys as values (attention_k_eq_v). */
  num_global_key_value_heads: count.nullish(),
  head_dim: count.default(256),
  /** Head size of layers without a window. */
  global_head_dim: count.nullish().default(512),
  attention_k_eq_v: flag.default(false),
  vocab_size: count.default(262_144),
  vocab_size_per_layer_input: count.default(262_144),
  hidden_size_per_layer_input: integer.nullish().default(256),
  num_kv_shared_layers: integer.nullish().default(20),
  use_double_wide_mlp: flag.default(true),
  sliding_window: integer.default(512),
  /** Every n-th layer has no window. */
  sliding_window_pattern: count.default(5),
  rope_scaling: RopeScaling.default({ rope_type: "proportional", partial_rotary_factor: 0.25 }),
  final_logit_softcapping: positive.nullish().default(30),
  tie_word_embeddings: flag.default(true),
  enable_moe_block: flag.default(false),
  /** Sizes that differ by layer, which transformers saves in place of the global_ keys. */
  per_layer_config: z
    .record(
      word,
      z.looseObject({ head_dim: count.optional(), num_key_value_heads: count.optional() }),
    )
    .nullish(),
};
type Config = ConfigOf<typeof keys>;

/** Additional keys of models with experts. */
const ExpertsConfig = z.looseObject({
  num_experts: count,
  top_k_experts: count,
  moe_intermediate_size: count,
});

export const gemma4Text = family({
  config: keys,
  names: { ".experts.switch_glu.": ".switch_mlp." },
  design: (config, weights) => {
    const { hidden_size: dims, head_dim, num_hidden_layers: layers } = config;
    const { attention_k_eq_v, num_key_value_heads, num_global_key_value_heads } = config;
    const each = config.hidden_size_per_layer_input ?? 0;
    const sharing = config.num_kv_shared_layers ?? 0;
    const owners = kvOwnersOf(layers, sharing, "num_kv_shared_layers");
    const slides = (layer: number) => (layer + 1) % config.sliding_window_pattern !== 0;
    const isGlobal = (layer: number) => windowOf(config, layer, slides) === undefined;
    return {
      norms: normsAround,
      slides,
      heads: (layer) => {
        const differing = config.per_layer_config;
        if (differing) return headsOf({ ...config, ...differing[layer] });
        const isFull = isGlobal(layer);
        const ownHeads = isFull && attention_k_eq_v && num_global_key_value_heads;
        return headsOf({
          ...config,
          num_key_value_heads: ownHeads || num_key_value_heads,
          head_dim: (isFull && config.global_head_dim) || head_dim,
        });
      },
      localRopeBase: config.rope_local_base_freq,
      headNorms: ["q_norm", "k_norm"],
      normsValues: true,
      attention: { scale: 1 },
      kvOwners: owners,
      arrange: (name, { kvHeads, headDim }, layer) => {
        if (!attention_k_eq_v || !isGlobal(layer) || layer >= owners) return;
        const rows = { first: 0, count: kvHeads * headDim };
        weights.matrices.pick(`${name}.k_proj`, `${name}.v_proj`, [rows]);
      },
      gating: "geglu",
      hidden: (layer) =>
        config.intermediate_size * (config.use_double_wide_mlp && layer >= owners ? 2 : 1),
      combine: (parts) => gemma4Block(config, weights, parts),
      embeddingScale: dims ** 0.5,
      layerInputs: each
        ? {
            width: each,
            make: () => layerInputs({ ...config, hidden_size_per_layer_input: each }, weights),
          }
        : undefined,
      logitCap: config.final_logit_softcapping,
    };
  },
});

function gemma4Block(
  config: Config,
  weights: Weights,
  { name, mix, mlp, norms }: LayerParts,
): Block {
  const { hidden_size: dims, rms_norm_eps: eps, hidden_size_per_layer_input: each } = config;
  const beside = config.enable_moe_block ? expertsBeside(config, weights, name) : undefined;
  const ofInput = each ? layerInputGate(weights, name, { dims, each, eps }) : undefined;
  const scale = weights.arrays.tensor(`${name}.layer_scalar`, [1]);
  const [inputNorm, mlpNorm] = [norms.attention as Norm, norms.mlp as Norm];
  return (x, step, input) => {
    const attended = add(x, norms.afterAttention!(mix(x, step, { norm: inputNorm })));
    const dense = mlp(attended, { norm: mlpNorm });
    const computed = beside ? beside(attended, dense) : dense;
    const h = add(attended, norms.afterMlp!(computed));
    return multiply(ofInput && input ? add(h, ofInput(h, input)) : h, scale);
  };
}

/** Adds the outputs of experts and MLP: attended, dense (T, D) -> (T, D) */
function expertsBeside(
  config: Config,
  weights: Weights,
  name: string,
): (attended: MlxArray, dense: MlxArray) => MlxArray {
  const { hidden_size: dims, rms_norm_eps: eps } = config;
  const { num_experts: experts, ...sparse } = parseConfig(ExpertsConfig, config);
  const makeNorm = (part: string) => rmsNorm(weights, `${name}.${part}`, dims, eps);
  const { arrays } = weights;
  const scale = arrays.tensor(`${name}.router.scale`, [dims]);
  const routerWeight = arrays.computed(() => multiply(scale, dims ** -0.5));
  const expertScale = arrays.tensor(`${name}.router.per_expert_scale`, [experts], "float32");
  const sizes = { experts, dims, hidden: sparse.moe_intermediate_size };
  arrangeExperts(weights.stored, name, sizes);
  const route = router(weights, `${name}.router.proj`, sizes, { each: sparse.top_k_experts });
  const mlps = expertMlps(weights, `${name}.switch_mlp`, sizes, "geglu");
  const denseNorm = makeNorm("post_feedforward_layernorm_1");
  const inputNorm = makeNorm("pre_feedforward_layernorm_2");
  const outputNorm = makeNorm("post_feedforward_layernorm_2");
  return (attended, dense) => {
    const { chosen, shares } = route(weights.device.rmsNorm(attended, routerWeight, eps));
    const scaled = multiply(shares, take(expertScale, chosen));
    const made = combined(weights, mlps, mlps(inputNorm(attended), chosen), scaled);
    return add(denseNorm(dense), outputNorm(made));
  };
}
