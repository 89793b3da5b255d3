// The CPU device. MLX computes on one thread, mostly one number at a time, so all operations that take notable time
// in a step are our own (ffi/cpu), in float32; other types use MLX's operations.
import { has } from "../../ffi/lib.ts";
import { CpuAttention, CpuLatentAttention } from "../kernels/attention/cpu-attention.ts";
import { cpuRecurrence } from "../kernels/recurrence/cpu-recurrence.ts";
import { array, type MlxArray } from "../mlx/array.ts";
import * as own from "../mlx/cpu.ts";
import { isHalf } from "../mlx/dtype.ts";
import { astype, flatten, reshape } from "../mlx/ops.ts";
import { Sequenced } from "../mlx/sequence.ts";
import { cpuEvaluation } from "./cpu-evaluation.ts";
import type { Compute, DeviceKind, ExpertProduct, MemoryKind, StepPolicy } from "./device.ts";
import { hostValues, mlxCompute } from "./gpu.ts";
import { fused, gateHalves, weightLinear } from "./linear.ts";

/** Token budget of a step, small enough for a steady inter-token latency of other streams. */
const TOKEN_BUDGET = 512;
const STEP_MS = 250;

const isFloat32 = (x: MlxArray) => x.dtype === "float32";

const steps: StepPolicy = {
  depth: 1,
  tokenBudget: TOKEN_BUDGET,
  stepMs: STEP_MS,
  paddedRows: (rows) => rows,
  compiles: false,
  trace: (build) => new Sequenced(build),
};

const memory: MemoryKind = {
  kvType: () => "float32",
  allocate: own.allocate,
  hasHostMemory: true,
  evaluation: cpuEvaluation,
};

export function cpuDevice(): DeviceKind {
  if (!has("mlx_serve_decode")) {
    throw new Error("this libmlxc lacks our CPU operations: use the one that set-up builds");
  }
  const mlx = mlxCompute();
  const gate: Compute["gate"] = (gating, gates, ups) => {
    if (typeof gating === "function" || !isFloat32(gates)) return mlx.gate(gating, gates, ups);
    return own.gate(gating, gates, ups);
  };
  const compute: Compute = {
    ...mlx,
    // Only float32 products are fast, and converting 16-bit weights in every step would be too slow.
    computeType: () => "float32",
    keepsQuantized: (dtype, quantization) =>
      dtype === "float32" && (!quantization || own.fitsPackedProduct(quantization)),
    // Our products with experts take only float32, and so do MLX's.
    expertType: () => "float32",
    // Keeps the stored type, because 16-bit scales, which panels support, take less memory bandwidth.
    scaleType: (stored) => stored,
    packedRows: (rows) => {
      const panels = own.panels(rows);
      if (panels) return panels;
      return isHalf(rows.dtype) ? astype(rows, "float32") : rows;
    },
    lookup: (matrix, tokens, dtype) => {
      const isPlain = tokens.dtype === "uint32" && tokens.ndim === 1;
      if (matrix.kind === "packed") {
        const rows = isPlain ? tokens : astype(flatten(tokens), "uint32");
        const found = own.lookup(rows, matrix.matrix, matrix.quantization);
        return isPlain ? found : reshape(found, [...tokens.shape, -1]);
      }
      const isOwn = dtype === "float32" && isFloat32(matrix.weight) && isPlain;
      return isOwn ? own.lookup(tokens, matrix) : mlx.lookup(matrix, tokens, dtype);
    },
    linear: (matrix, options) => {
      if (matrix.kind === "dense") return weightLinear(matrix.weight, options, gate);
      const { matrix: packed, quantization } = matrix;
      const product = (x: MlxArray, fusing: own.ProductOptions) =>
        own.packedProduct(x, packed, quantization, fusing);
      return fused(product, options.bias, gate);
    },
    experts: (matrix, bias) => {
      const [matrices, quantization] =
        matrix.kind === "dense" ? [matrix] : [matrix.matrix, matrix.quantization];
      const linear: ExpertProduct = (x, experts, { gating } = {}) => {
        const rows = isFloat32(x) ? x : astype(x, "float32");
        const product = (isGated: boolean) =>
          own.expertProduct(rows, experts, matrices, quantization, { bias, isGated });
        const made =
          !gating || gating === "swiglu"
            ? product(gating !== undefined)
            : gateHalves(product(false), gating, gate);
        return rows === x ? made : astype(made, x.dtype);
      };
      // expertProduct sorts rows itself.
      return Object.assign(linear, { sortedRows: Number.POSITIVE_INFINITY });
    },
    rmsNorm: (x, weight, eps) => (isFloat32(x) ? own : mlx).rmsNorm(x, weight, eps),
    gate,
    attention: ({ headDim }, dtype) => new CpuAttention(headDim, dtype),
    latentAttention: (shape, dtype) => new CpuLatentAttention(shape, dtype),
    recurrence: () => cpuRecurrence,
    longPrompt: Number.POSITIVE_INFINITY,
    softmax: (x) => (isFloat32(x) ? own : mlx).softmax(x),
    logSumExp: (x) => (isFloat32(x) ? own : mlx).logSumExp(x),
    best: (x) => (isFloat32(x) ? own : mlx).best(x),
    mask: (x, bits) => {
      if (!isFloat32(x)) return mlx.mask(x, bits);
      const rows = x.shape[0]!;
      return own.mask(x, array(bits, [rows, bits.length / rows]));
    },
  };
  return { backend: "cpu", ...compute, ...steps, ...hostValues, ...memory };
}
