// Gemma 4 without images: layers with a window and layers without, with heads of their own sizes; keys that are values
// too in some; and, by the model's size, an embedding for each layer with last layers that read the keys and values of
// earlier ones, or experts beside the MLP.
import { z } from "zod";
import type { MlxArray } from "../../mlx/array.ts";
import { add, multiply, take } from "../../mlx/ops.ts";
import { headsOf, parseConfig, windowOf } from "../config.ts";
import { decoder } from "../decoder.ts";
import { router, splitExperts } from "../experts.ts";
import { attentionBlock, expertMlps, gatedMlp, plainNorm, rmsNorm, softCap } from "../layers.ts";
import type { Model } from "../model.ts";
import type { Weights } from "../weights.ts";
import { makeRopes, RopesConfig } from "./gemma3-text.ts";
import { KvSharing, layerInputGate, layerInputs, TOWERS } from "./gemma3n.ts";

const count = z.int().positive();

const Config = RopesConfig.extend({
  num_attention_heads: count.default(8),
  num_key_value_heads: count.default(1),
  /** Of layers without a window whose keys are values too. */
  num_global_key_value_heads: count.nullish(),
  head_dim: count.default(256),
  /** Of layers without a window. */
  global_head_dim: count.nullish().default(512),
  attention_k_eq_v: z.boolean().default(false),
  vocab_size: count.default(262_144),
  vocab_size_per_layer_input: count.default(262_144),
  hidden_size_per_layer_input: z.int().nullish().default(256),
  num_kv_shared_layers: z.int().nullish().default(20),
  use_double_wide_mlp: z.boolean().default(true),
  sliding_window: z.int().default(512),
  /** One layer of so many sees everything. */
  sliding_window_pattern: count.default(5),
  rope_parameters: RopesConfig.shape.rope_parameters.default({
    full_attention: {
      rope_type: "proportional",
      rope_theta: 1_000_000,
      partial_rotary_factor: 0.25,
    },
    sliding_attention: { rope_type: "default", rope_theta: 10_000 },
  }),
  final_logit_softcapping: z.number().positive().nullish().default(30),
  tie_word_embeddings: z.boolean().default(true),
  enable_moe_block: z.boolean().default(false),
});
type Config = z.infer<typeof Config>;

/** Of those that have experts. */
const ExpertsConfig = z.looseObject({
  num_experts: count,
  top_k_experts: count,
  moe_intermediate_size: count,
});

export function gemma4Text(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, rms_norm_eps: eps, final_logit_softcapping } = parsed;
  const { head_dim, attention_k_eq_v, num_key_value_heads, num_hidden_layers: layers } = parsed;
  const each = parsed.hidden_size_per_layer_input ?? 0;
  const globalHeadDim = parsed.global_head_dim ?? head_dim;
  const ropes = makeRopes(parsed, weights, globalHeadDim, head_dim);
  const makeNorm = (name: string, size = dims) => rmsNorm(weights, name, size, eps);
  const vNorms = {
    full: plainNorm(weights, globalHeadDim, eps),
    sliding: plainNorm(weights, head_dim, eps),
  };
  const sharing = new KvSharing(layers - (parsed.num_kv_shared_layers ?? 0));
  const inputs = each
    ? layerInputs({ ...parsed, hidden_size_per_layer_input: each }, weights)
    : undefined;
  return decoder(
    parsed,
    weights,
    (name, layer, states) => {
      const window = windowOf(
        parsed,
        layer,
        (at) => (at + 1) % parsed.sliding_window_pattern !== 0,
      );
      const kind = window === undefined ? "full" : "sliding";
      const keysAreValues = attention_k_eq_v && kind === "full";
      const heads = headsOf({
        ...parsed,
        num_key_value_heads:
          (keysAreValues && parsed.num_global_key_value_heads) || num_key_value_heads,
        head_dim: kind === "full" ? globalHeadDim : head_dim,
      });
      const sizes = { dims, ...heads };
      const attention = `${name}.self_attn`;
      const shared = sharing.stateFor(layer, window);
      if (keysAreValues && !shared) {
        const rows = { first: 0, count: sizes.kvHeads * sizes.headDim };
        weights.pick(`${attention}.k_proj`, `${attention}.v_proj`, [rows]);
      }
      const attend = attentionBlock(weights, attention, states, sizes, {
        rope: ropes[kind],
        qNorm: makeNorm(`${attention}.q_norm`, sizes.headDim),
        kNorm: shared ? undefined : makeNorm(`${attention}.k_norm`, sizes.headDim),
        vNorm: vNorms[kind],
        shared,
        attention: { scale: 1, window },
      });
      sharing.add(attend.state);
      const isWide = parsed.use_double_wide_mlp && shared !== undefined;
      const hidden = parsed.intermediate_size * (isWide ? 2 : 1);
      const mlp = gatedMlp(weights, `${name}.mlp`, dims, hidden, "geglu");
      const beside = parsed.enable_moe_block ? expertsBeside(parsed, weights, name) : undefined;
      const inputNorm = makeNorm(`${name}.input_layernorm`);
      const postAttentionNorm = makeNorm(`${name}.post_attention_layernorm`);
      const preMlpNorm = makeNorm(`${name}.pre_feedforward_layernorm`);
      const postMlpNorm = makeNorm(`${name}.post_feedforward_layernorm`);
      const ofInput = each ? layerInputGate(weights, name, { dims, each, eps }) : undefined;
      const scale = weights.tensor(`${name}.layer_scalar`, [1]);
      return (x, step, input) => {
        const attended = add(x, postAttentionNorm(attend(x, step, { norm: inputNorm })));
        const dense = mlp(attended, { norm: preMlpNorm });
        const computed = beside ? beside(attended, dense) : dense;
        const h = add(attended, postMlpNorm(computed));
        return multiply(ofInput && input ? add(h, ofInput(h, input)) : h, scale);
      };
    },
    {
      afterEmbedding: (h) => multiply(h, dims ** 0.5),
      layerInputs: inputs,
      afterLogits: (logits) =>
        final_logit_softcapping ? softCap(logits, final_logit_softcapping) : logits,
      ignored: new RegExp(`${TOWERS.source}|${unusedKv(sharing.first, layers).source}`),
    },
  );
}

/** The authors' files have keys and values of layers that read those of others. */
function unusedKv(first: number, layers: number): RegExp {
  const sharing = Array.from({ length: layers - first }, (_, i) => first + i);
  return new RegExp(`layers\\.(${sharing.join("|")})\\.self_attn\\.(k_proj|v_proj|k_norm)\\.`);
}

/** Adds what a token's experts make of it to what the MLP does: attended, dense (T, D) -> (T, D) */
function expertsBeside(
  config: Config,
  weights: Weights,
  name: string,
): (attended: MlxArray, dense: MlxArray) => MlxArray {
  const { hidden_size: dims, rms_norm_eps: eps } = config;
  const { num_experts: experts, ...sparse } = parseConfig(ExpertsConfig, config);
  if (weights.has(`${name}.experts.gate_up_proj`)) {
    splitExperts(weights, `${name}.experts.gate_up_proj`, `${name}.experts.switch_glu`);
    weights.rename({
      [`${name}.experts.down_proj`]: `${name}.experts.switch_glu.down_proj.weight`,
    });
  }
  const makeNorm = (part: string) => rmsNorm(weights, `${name}.${part}`, dims, eps);
  const scale = weights.tensor(`${name}.router.scale`, [dims]);
  const routerWeight = weights.computed(() => multiply(scale, dims ** -0.5));
  const expertScale = weights.tensor(`${name}.router.per_expert_scale`, [experts], "float32");
  const sizes = { experts, dims, hidden: sparse.moe_intermediate_size };
  const route = router(weights, `${name}.router.proj`, sizes, {
    each: sparse.top_k_experts,
    scores: "softmax",
    isNormalized: true,
    scale: 1,
  });
  const mlps = expertMlps(weights, `${name}.experts.switch_glu`, sizes, "geglu");
  const denseNorm = makeNorm("post_feedforward_layernorm_1");
  const inputNorm = makeNorm("pre_feedforward_layernorm_2");
  const outputNorm = makeNorm("post_feedforward_layernorm_2");
  return (attended, dense) => {
    const { chosen, shares } = route(weights.device.rmsNorm(attended, routerWeight, eps));
    const scaled = multiply(shares, take(expertScale, chosen));
    const made = weights.device.combine(mlps(inputNorm(attended), chosen), scaled);
    return add(denseNorm(dense), outputNorm(made));
  };
}
