// Gemma 3n: several hidden states of a token, of which each layer computes one and predicts the others (AltUp), a
// low-rank branch beside attention (LAuReL), sparse activations, an embedding for each layer, and last layers that
// read the keys and values of earlier ones. Of such a file, the part that reads and writes text.
import { z } from "zod";
import type { Gating } from "../../device/device.ts";
import { LoadError } from "../../files/load-error.ts";
import { array, type MlxArray } from "../../mlx/array.ts";
import {
  add,
  astype,
  clip,
  concatenate,
  divide,
  erfinv,
  expandDims,
  less,
  matmul,
  maximum,
  multiply,
  power,
  reshape,
  slice,
  split,
  squeeze,
  subtract,
  sum,
  swapAxes,
  tanh,
  where,
} from "../../mlx/ops.ts";
import { Scope } from "../../mlx/scope.ts";
import { headsOf, parseConfig, windowOf } from "../config.ts";
import { decoder, unwrapText } from "../decoder.ts";
import { attentionBlock, type Block, gatedMlp, plainNorm, rmsNorm, softCap } from "../layers.ts";
import type { Model } from "../model.ts";
import type { KvState } from "../states.ts";
import type { Weights } from "../weights.ts";
import { makeRopes, RopesConfig } from "./gemma3-text.ts";

const count = z.int().positive();

const Config = RopesConfig.extend({
  /** One for all layers, or one each. */
  intermediate_size: z.union([count, z.array(count)]),
  num_kv_shared_layers: z.int(),
  vocab_size_per_layer_input: count,
  hidden_size_per_layer_input: count,
  final_logit_softcapping: z.number().positive().nullish(),
  /** The share of activations that are zero, in each layer. */
  activation_sparsity_pattern: z.array(z.number()).nullish(),
  /** In place of it, in GGUF files: how many standard deviations above the mean those begin that are not zero. */
  activation_deviations: z.array(z.number().nullable()).nullish(),
  altup_num_inputs: count,
  altup_active_idx: z.int(),
  altup_coef_clip: z.number().positive().nullish(),
  altup_correct_scale: z.boolean(),
  laurel_rank: count,
});
type Config = z.infer<typeof Config>;

const Wrapped = z.looseObject({ text_config: z.looseObject({}) });

/** Tensors of what sees and hears. */
export const TOWERS =
  /^(model\.)?(vision_tower|vision_embedder|audio_tower|embed_vision|embed_audio|multi_modal_projector)\./;

/** Files have them for layers that share those of others, too. */
const SHARED = /\.self_attn\.(k_proj|v_proj|k_norm)\./;

export function gemma3n(config: unknown, weights: Weights): Model {
  const wrapped = Wrapped.safeParse(config);
  const text = wrapped.success
    ? { model_type: "gemma3n_text", ...wrapped.data.text_config }
    : config;
  const parsed = parseConfig(Config, text);
  const { hidden_size: dims, rms_norm_eps: eps, final_logit_softcapping } = parsed;
  unwrapText(weights);
  const sizes = { dims, ...headsOf(parsed) };
  const ropes = makeRopes(parsed, weights, sizes.headDim);
  const makeNorm = (name: string, size = dims) => rmsNorm(weights, name, size, eps);
  const vNorm = plainNorm(weights, sizes.headDim, eps);
  const sharing = new KvSharing(parsed.num_hidden_layers - parsed.num_kv_shared_layers);
  const norm = makeNorm("model.norm");
  const streams = hiddenStreams(parsed, weights);
  const inputs = layerInputs(parsed, weights);
  return decoder(
    parsed,
    weights,
    (name, layer, states) => {
      const window = windowOf(parsed, layer, () => false);
      const shared = sharing.stateFor(layer, window);
      const attend = attentionBlock(weights, `${name}.self_attn`, states, sizes, {
        rope: window === undefined ? ropes.full : ropes.sliding,
        qNorm: makeNorm(`${name}.self_attn.q_norm`, sizes.headDim),
        kNorm: shared ? undefined : makeNorm(`${name}.self_attn.k_norm`, sizes.headDim),
        vNorm,
        shared,
        attention: { scale: 1, window },
      });
      sharing.add(attend.state);
      return altUpBlock(parsed, weights, name, layer, attend);
    },
    {
      norm: (h) => norm(streams.merge(h)),
      afterEmbedding: (h) => streams.spread(multiply(h, dims ** 0.5)),
      layerInputs: (tokens, h) => inputs(tokens, squeeze(slice(h, 1, 0, 1), 1)),
      afterLogits: (logits) =>
        final_logit_softcapping ? softCap(logits, final_logit_softcapping) : logits,
      ignored: new RegExp(`${TOWERS.source}|${SHARED.source}`),
    },
  );
}

/** Which layer's keys and values the last layers read: those of the last layer before them that sees as far. */
export class KvSharing {
  readonly first: number;
  readonly #latest = new Map<number | undefined, KvState>();

  /** `first`: the first layer that has none of its own. */
  constructor(first: number) {
    if (first < 1) {
      throw new LoadError("config.json: num_kv_shared_layers: no layer has keys and values");
    }
    this.first = first;
  }

  stateFor(layer: number, window: number | undefined): KvState | undefined {
    return layer < this.first ? undefined : this.#latest.get(window);
  }

  add(state: KvState): void {
    this.#latest.set(state.window, state);
  }
}

type LayerInputsConfig = Pick<
  Config,
  | "hidden_size"
  | "num_hidden_layers"
  | "rms_norm_eps"
  | "vocab_size"
  | "vocab_size_per_layer_input"
  | "hidden_size_per_layer_input"
>;

/** What each layer gets of a token: an embedding of its own, and a part of the common one projected. */
export function layerInputs(
  config: LayerInputsConfig,
  weights: Weights,
): (tokens: MlxArray, embedded: MlxArray) => MlxArray[] {
  const { hidden_size: dims, num_hidden_layers: layers, rms_norm_eps: eps } = config;
  const { hidden_size_per_layer_input: each, vocab_size_per_layer_input: vocabulary } = config;
  const embedding = weights.embedding("model.embed_tokens_per_layer", vocabulary, layers * each);
  const project = weights.linear("model.per_layer_model_projection", dims, layers * each);
  const norm = rmsNorm(weights, "model.per_layer_projection_norm", each, eps);
  return (tokens, embedded) => {
    // Tokens of what sees and hears have no embedding here.
    const known =
      vocabulary < config.vocab_size ? where(less(tokens, vocabulary), tokens, 0) : tokens;
    const byLayer = (x: MlxArray) => reshape(x, [-1, layers, each]);
    const own = byLayer(multiply(embedding.lookup(known), each ** 0.5));
    const projected = norm(byLayer(multiply(project(embedded), dims ** -0.5)));
    const all = multiply(add(projected, own), 0.5 ** 0.5); // (T, layers, each)
    return split(all, layers, 1).map((input) => squeeze(input, 1));
  };
}

/** What a layer makes of its input, as far as the hidden state opens the gate: (T, D), (T, each) -> (T, D) */
export function layerInputGate(
  weights: Weights,
  name: string,
  { dims, each, eps }: { dims: number; each: number; eps: number },
): (h: MlxArray, input: MlxArray) => MlxArray {
  const gate = weights.linear(`${name}.per_layer_input_gate`, dims, each);
  const project = weights.linear(`${name}.per_layer_projection`, each, dims);
  const norm = rmsNorm(weights, `${name}.post_per_layer_input_norm`, dims, eps);
  return (h, input) => norm(project(weights.device.gate("geglu", gate(h), input)));
}

/** One hidden state (T, D) to several (T, N, D) of its magnitude, and several to their mean. */
function hiddenStreams({ hidden_size: dims, altup_num_inputs: inputs }: Config, weights: Weights) {
  const projections = (name: string) => {
    // GGUF files have them in one tensor.
    const isStacked = weights.has(`model.${name}.weight`);
    if (isStacked) weights.check(`model.${name}`, [inputs - 1, dims, dims]);
    return Array.from({ length: inputs - 1 }, (_, i) => {
      const own = `model.${name}.${i}`;
      if (isStacked) {
        weights.pick(`model.${name}`, own, [{ first: i, count: 1 }]);
        weights.reshape(`${own}.weight`, [1, dims, dims], [dims, dims]);
      }
      return weights.linear(own, dims, dims);
    });
  };
  const spreading = projections("altup_projections");
  const merging = projections("altup_unembed_projections");
  const magnitude = (x: MlxArray) => power(mean(multiply(x, x)), 0.5);
  const like = (first: MlxArray, x: MlxArray) =>
    multiply(x, divide(magnitude(first), magnitude(x)));
  return {
    spread(h: MlxArray): MlxArray {
      const all = [h, ...spreading.map((project) => like(h, project(h)))];
      return concatenate(
        all.map((x) => expandDims(x, 1)),
        1,
      );
    },
    merge(h: MlxArray): MlxArray {
      const [first, ...rest] = split(h, inputs, 1).map((x) => squeeze(x, 1)) as [MlxArray];
      const all = rest.map((x, i) => like(first, merging[i]!(x)));
      return divide(
        all.reduce((total, x) => add(total, x), first),
        inputs,
      );
    },
  };
}

/** Of the last axis, which stays with the size 1. */
function mean(x: MlxArray): MlxArray {
  return divide(sum(x, -1, true), x.shape.at(-1)!);
}

/** x (T, N, D): attention, the low-rank branch and the MLP compute the active hidden state. */
function altUpBlock(
  config: Config,
  weights: Weights,
  name: string,
  layer: number,
  attend: ReturnType<typeof attentionBlock>,
): Block {
  const { hidden_size: dims, rms_norm_eps: eps, hidden_size_per_layer_input: each } = config;
  const { intermediate_size: hidden } = config;
  const makeNorm = (part: string) => rmsNorm(weights, `${name}.${part}`, dims, eps);
  const altUp = makeAltUp(config, weights, `${name}.altup`);
  const left = weights.linear(`${name}.laurel.linear_left`, dims, config.laurel_rank);
  const right = weights.linear(`${name}.laurel.linear_right`, config.laurel_rank, dims);
  const laurelNorm = makeNorm("laurel.post_laurel_norm");
  const deviations = sparseFrom(config, layer);
  const mlp = gatedMlp(
    weights,
    `${name}.mlp`,
    dims,
    typeof hidden === "number" ? hidden : hidden[layer]!,
    deviations === undefined ? "geglu" : sparseGating(weights, deviations),
  );
  const inputNorm = makeNorm("input_layernorm");
  const postAttentionNorm = makeNorm("post_attention_layernorm");
  const preMlpNorm = makeNorm("pre_feedforward_layernorm");
  const postMlpNorm = makeNorm("post_feedforward_layernorm");
  const made = layerInputGate(weights, name, { dims, each, eps });
  return (x, step, input) => {
    const predicted = altUp.predict(x);
    const active = altUp.active(predicted);
    const normed = inputNorm(active);
    const attended = add(active, postAttentionNorm(attend(normed, step)));
    const laurel = add(normed, laurelNorm(right(left(normed))));
    const h = multiply(add(attended, laurel), 0.5 ** 0.5);
    const computed = add(h, postMlpNorm(mlp(h, { norm: preMlpNorm })));
    const corrected = altUp.correct(predicted, computed);
    const [first, ...others] = split(corrected, config.altup_num_inputs, 1) as [MlxArray];
    const more = expandDims(made(altUp.scaled(altUp.active(corrected)), input!), 1);
    return concatenate([first, ...others.map((other) => add(other, more))], 1);
  };
}

/** How many standard deviations above the mean a layer's gates begin to open: a quantile of a normal distribution. */
function sparseFrom(config: Config, layer: number): number | undefined {
  const { activation_deviations, activation_sparsity_pattern } = config;
  if (activation_deviations) return activation_deviations[layer] ?? undefined;
  const sparsity = activation_sparsity_pattern?.[layer] ?? 0;
  if (sparsity <= 0) return undefined;
  using _ = new Scope();
  return multiply(erfinv(array(Float32Array.of(2 * sparsity - 1))), 2 ** 0.5).numbers()[0];
}

function sparseGating({ device }: Weights, deviations: number): Gating {
  return (gates, ups) => {
    const apart = subtract(gates, mean(gates));
    const deviation = power(mean(multiply(apart, apart)), 0.5);
    const open = maximum(subtract(apart, multiply(deviation, deviations)), 0);
    return device.gate("geglu", open, ups);
  };
}

/** Alternating updates: predicts all hidden states of a token, and corrects them by the one that was computed. */
function makeAltUp(config: Config, weights: Weights, name: string) {
  const { hidden_size: dims, rms_norm_eps: eps, altup_num_inputs: inputs } = config;
  const { altup_coef_clip: limit, altup_active_idx: at, altup_correct_scale } = config;
  const routerNorm = rmsNorm(weights, `${name}.router_norm`, dims, eps);
  const router = weights.linear(`${name}.modality_router`, dims, inputs);
  const coefficients = (part: string, outputs: number) => {
    const stored = weights.tensor(`${name}.${part}.weight`, [outputs, inputs], "float32");
    return weights.computed(() => swapAxes(limit ? clip(stored, -limit, limit) : stored, 0, 1));
  };
  const prediction = coefficients("prediction_coefs", inputs ** 2);
  const correction = coefficients("correction_coefs", inputs);
  const scale = weights.tensor(`${name}.correct_output_scale`, [dims]);
  const modalities = (x: MlxArray) =>
    tanh(astype(router(multiply(routerNorm(x), 1 / dims)), "float32")); // (T, N)
  const active = (x: MlxArray) => squeeze(slice(x, 1, at, at + 1), 1);
  return {
    active,
    scaled: (x: MlxArray) => (altup_correct_scale ? multiply(x, scale) : x),
    predict(x: MlxArray): MlxArray {
      const mixing = reshape(matmul(modalities(active(x)), prediction), [-1, inputs, inputs]);
      const exact = astype(x, "float32");
      return astype(add(exact, matmul(mixing, exact)), x.dtype);
    },
    correct(predicted: MlxArray, computed: MlxArray): MlxArray {
      const shares = add(matmul(modalities(computed), correction), 1); // (T, N)
      const innovation = expandDims(subtract(computed, active(predicted)), 1);
      const exact = add(multiply(innovation, expandDims(shares, -1)), predicted);
      return astype(exact, computed.dtype);
    },
  };
}
