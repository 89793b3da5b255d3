// Owns the arrays of a model's weights: loads stored tensors in the precision that suits the device, keeps every
// array and constant made from them, and frees all with `free`.
import type { Compute, FloatType, Memory } from "../../device/device.ts";
import type { Matrix } from "../../kernels/product/matrix.ts";
import { array, type MlxArray } from "../../mlx/array.ts";
import { astype } from "../../mlx/ops.ts";
import { hold, Scope } from "../../mlx/scope.ts";
import type { StoredTensor } from "../checkpoint/stored/tensor.ts";
import type { StoredMatrices } from "./stored-matrices.ts";
import type { StoredTensors } from "./stored-tensors.ts";
import {
  loadDense,
  loadDequantized,
  loadPlain,
  loadRepacked,
  packed,
  plainType,
  type StoredQuantized,
} from "./tensors.ts";

export class WeightArrays {
  readonly #device: Compute & Memory;
  readonly #dtype: FloatType;
  readonly #stored: StoredTensors;
  readonly #matrices: StoredMatrices;
  readonly #arrays: MlxArray[] = [];
  /** Transposed views and constants, which `bytes` does not count. */
  readonly #views: MlxArray[] = [];

  constructor(
    device: Compute & Memory,
    dtype: FloatType,
    stored: StoredTensors,
    matrices: StoredMatrices,
  ) {
    this.#device = device;
    this.#dtype = dtype;
    this.#stored = stored;
    this.#matrices = matrices;
  }

  tensor(name: string, shape: readonly number[], dtype = this.#dtype): MlxArray {
    const stored = this.#stored.expect(name, shape);
    return this.#own(loadDense(stored, dtype, this.#device), stored);
  }

  /** Loads a tensor as a vector of `size` elements, whatever axes the file has. */
  vector(name: string, size: number, dtype = this.#dtype): MlxArray {
    this.#stored.flatten(name, [size]);
    return this.tensor(name, [size], dtype);
  }

  /** Loads a tensor of one number: (1). */
  scalar(name: string, dtype = this.#dtype): MlxArray {
    return this.vector(name, 1, dtype);
  }

  /** Loads a tensor without conversion. */
  plain(stored: StoredTensor): MlxArray {
    return this.#own(loadPlain(stored, this.#device), stored);
  }

  /** Loads `name`.weight: quantized as stored if the device can multiply by that format, else dense. */
  matrix(name: string, shape: readonly number[], dtype = this.#dtype): Matrix {
    const quantized = this.#matrices.quantized(name, shape);
    if (quantized && this.#device.keepsQuantized(dtype, quantized.quantization)) {
      return this.#packed(quantized, dtype);
    }
    const repacked = quantized ? undefined : this.#repacked(`${name}.weight`, shape, dtype);
    return repacked ?? { kind: "dense", weight: this.dense(name, shape, dtype) };
  }

  /** Loads `name`.weight, dequantized if it is stored quantized. */
  dense(name: string, shape: readonly number[], dtype = this.#dtype): MlxArray {
    const quantized = this.#matrices.quantized(name, shape);
    if (!quantized) return this.tensor(`${name}.weight`, shape, dtype);
    const { weight, scales, biases } = quantized;
    const dense = loadDequantized(quantized, shape, dtype, this.#device);
    return this.#own(dense, weight, scales, ...(biases ? [biases] : []));
  }

  /** Makes a constant, which `bytes` does not count. */
  constant(values: Float32Array, shape: readonly number[] = [values.length]): MlxArray {
    using _ = new Scope();
    return this.keep(array(values, [...shape]));
  }

  /** Makes a constant (1) in the model's type, which `bytes` counts. */
  number(value: number): MlxArray {
    return this.computed(() => astype(array(Float32Array.of(value)), this.#dtype));
  }

  /** Computes an array at load time, which `bytes` counts. */
  computed(make: () => MlxArray): MlxArray {
    using _ = new Scope();
    const made = hold(make());
    this.#arrays.push(made);
    if (!this.#device.isSketch) made.evaluate();
    return made;
  }

  /** Takes ownership of a view of an array, or of a constant. */
  keep(view: MlxArray): MlxArray {
    if (!this.#device.isSketch) view.evaluate();
    this.#views.push(hold(view));
    return view;
  }

  get bytes(): number {
    return this.#arrays.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  free(): void {
    for (const owned of [...this.#views.splice(0), ...this.#arrays.splice(0)]) owned.free();
  }

  #own(made: MlxArray, ...sources: StoredTensor[]): MlxArray {
    this.#arrays.push(made);
    this.#stored.loaded(sources);
    return made;
  }

  #packed({ weight, scales, biases, quantization }: StoredQuantized, dtype: FloatType): Matrix {
    const device = this.#device;
    const load = (part: StoredTensor) =>
      part === weight || quantization.mode !== "affine"
        ? loadPlain(part, device)
        : loadDense(part, device.scaleType(plainType(part) as FloatType, dtype), device);
    const parts = [weight, scales, ...(biases ? [biases] : [])];
    const [w, s, b] = parts.map((part) => this.#own(packed(load(part), device), part));
    return { kind: "packed", matrix: { weight: w!, scales: s!, biases: b }, quantization };
  }

  /** Loads a GGUF matrix in one of MLX's formats; undefined if no format holds it exactly. */
  #repacked(name: string, shape: readonly number[], dtype: FloatType): Matrix | undefined {
    const device = this.#device;
    const stored = this.#stored.expect(name, shape);
    if (!device.keepsQuantized(dtype)) return undefined;
    const load = (type: FloatType) =>
      loadRepacked(stored, type === "float32" ? type : "float16", device);
    let loaded = load(device.scaleType("float16", dtype));
    if (!loaded) return undefined;
    if (!loaded.isExact && dtype === "float32") {
      for (const part of Object.values(loaded.matrix)) part?.free();
      loaded = load("float32")!;
    }
    const { weight, scales, biases } = loaded.matrix;
    this.#own(scales);
    if (biases) this.#own(biases);
    this.#own(weight, stored);
    return { kind: "packed", ...loaded };
  }
}
