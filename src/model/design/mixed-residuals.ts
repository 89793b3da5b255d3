// Builds layers that read a mixture of earlier layers' outputs in place of the residual sum, as in Kimi K3.
import type { Norm } from "../../device/device.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { astype, concatenate, expandDims, multiply, softmax, sum } from "../../mlx/ops.ts";
import type { BaseConfig } from "../checkpoint/config.ts";
import type { Crossing } from "../layers/crossings.ts";
import type { Weights } from "../weights/weights.ts";
import type { Design } from "./design.ts";

/** Stores the residual sum and restarts it every `size` layers; attention, MLP and last norm mix all the sums. */
export function mixedResiduals(
  weights: Weights,
  { hidden_size: dims, num_hidden_layers: layers, rms_norm_eps: eps }: BaseConfig,
  size: number,
): Design {
  const sums = Array.from({ length: Math.ceil(layers / size) }, (_, i): Crossing => {
    return { from: i * size, to: layers - 1, width: dims };
  });
  /** Mixes the current residual sum with the sums that were stored at layers below `before`. */
  const mixture = (name: string, before: number) => {
    const mix = residualMixture(weights, name, dims, eps);
    const begun = sums.filter(({ from }) => from < before);
    const values = () => begun.map(({ value }) => value!);
    return (partial: MlxArray) => mix(values(), partial);
  };
  return {
    crossings: sums,
    combine: ({ name, layer, mix, mlp, norms }) => {
      const beforeAttention = mixture(`${name}.self_attention_res`, layer);
      const beforeMlp = mixture(`${name}.mlp_res`, layer + 1);
      const begun = sums.find(({ from }) => from === layer);
      const [inputNorm, postNorm] = [norms.attention as Norm, norms.mlp as Norm];
      return (x, step) => {
        const taken = beforeAttention(x);
        if (begun) begun.value = x;
        const h = mix(taken, step, { norm: inputNorm, residual: begun ? undefined : x });
        return mlp(beforeMlp(h), { norm: postNorm, residual: h });
      };
    },
    beforeNorm: mixture("model.output_attn_res", layers),
  };
}

function mixtureWeight(weights: Weights, name: string, dims: number): MlxArray {
  // GGUF files store norm weight times projection as one tensor.
  const product = `${name}_score.weight`;
  if (weights.stored.has(product)) return weights.arrays.tensor(product, [dims], "float32");
  const scale = weights.arrays.tensor(`${name}_norm.weight`, [dims], "float32");
  const direction = weights.arrays.vector(`${name}_proj.weight`, dims, "float32");
  return weights.arrays.computed(() => multiply(scale, direction));
}

/** Returns a weighted mean of the sums and the current output. Each token has its own weights, by softmax. */
function residualMixture(weights: Weights, name: string, dims: number, eps: number) {
  const weight = mixtureWeight(weights, name, dims);
  return (sums: readonly MlxArray[], partial: MlxArray): MlxArray => {
    if (sums.length === 0) return partial;
    const parts = [...sums, partial].map((each) => expandDims(each, 0));
    const all = concatenate(parts, 0); // (sums, T, D)
    const normed = weights.device.rmsNorm(astype(all, "float32"), undefined, eps);
    const shares = softmax(sum(multiply(normed, weight), -1, true), 0); // (sums, T, 1)
    return astype(sum(multiply(all, shares), 0), partial.dtype);
  };
}
