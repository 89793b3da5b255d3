// Makes an additional input per layer, as in Gemma 3n and 4.
import type { z } from "zod";
import type { MlxArray } from "../../mlx/array.ts";
import { add, less, multiply, reshape, split, squeeze, where } from "../../mlx/ops.ts";
import { type BaseConfig, count } from "../checkpoint/config.ts";
import { rmsNorm } from "../layers/layers.ts";
import type { Weights } from "../weights/weights.ts";
import type { LayerInputs } from "./decoder.ts";

/** Configuration keys of additional inputs. */
export const layerInputKeys = {
  vocab_size_per_layer_input: count,
  hidden_size_per_layer_input: count,
};

type LayerInputsConfig = Pick<
  BaseConfig,
  "hidden_size" | "num_hidden_layers" | "rms_norm_eps" | "vocab_size"
> &
  z.infer<z.ZodObject<typeof layerInputKeys>>;

/** Makes each layer's input: an embedding of the token for this layer, plus a projection of the usual embedding. */
export function layerInputs(config: LayerInputsConfig, weights: Weights): LayerInputs {
  const { hidden_size: dims, num_hidden_layers: layers, rms_norm_eps: eps } = config;
  const { hidden_size_per_layer_input: each, vocab_size_per_layer_input: vocabulary } = config;
  const embedding = weights.embedding("model.embed_tokens_per_layer", vocabulary, layers * each);
  const project = weights.linear("model.per_layer_model_projection", dims, layers * each);
  const norm = rmsNorm(weights, "model.per_layer_projection_norm", each, eps);
  return (tokens, embedded) => {
    // Replaces image and audio tokens by token 0, because they have no embedding in this table.
    const known =
      vocabulary < config.vocab_size ? where(less(tokens, vocabulary), tokens, 0) : tokens;
    const byLayer = (x: MlxArray) => reshape(x, [-1, layers, each]);
    const own = byLayer(multiply(embedding.lookup(known), each ** 0.5));
    const projected = norm(byLayer(multiply(project(embedded), dims ** -0.5)));
    const all = multiply(add(projected, own), 0.5 ** 0.5); // (T, layers, each)
    return split(all, layers, 1).map((input) => squeeze(input, 1));
  };
}

/** Gates a layer's additional input by the hidden state, and projects it: (T, D), (T, features) -> (T, D) */
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
