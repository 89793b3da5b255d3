// Where keys and values live: blocks of BLOCK_TOKENS tokens, in one pool a layer, written in place. The
// store is the same on every device (device-kv-store.ts); what computes with its blocks is not.
import type { Backend } from "../../ffi/native.ts";
import { CpuAttention } from "../kernels/cpu-attention.ts";
import { PagedAttention } from "../kernels/paged-attention.ts";
import type { Dtype } from "../mlx/dtype.ts";
import { DeviceKvStore } from "./device-kv-store.ts";
import type { ModelShape } from "./model.ts";

export function makeKvStore(
  shape: ModelShape,
  blocks: number,
  dtype: Dtype,
  backend: Backend,
): DeviceKvStore {
  const kept = kvType(dtype, backend);
  if (backend === "cpu") {
    const attention = new CpuAttention(shape.headDim, dtype);
    return new DeviceKvStore(shape, blocks, kept, attention, Number.POSITIVE_INFINITY);
  }
  return new DeviceKvStore(shape, blocks, kept, new PagedAttention(backend, shape, dtype));
}

/** What keys and values are kept in: a CPU converts 16 bits too slowly to do it in every step. */
export function kvType(dtype: Dtype, backend: Backend): Dtype {
  return backend === "cpu" ? "float32" : dtype;
}
