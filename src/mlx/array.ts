// An MLX array: a handle, owned by the scope that was open when it was created (scope.ts). Arrays are
// lazy: an operation only adds to the graph, until something evaluates it or reads it on the host.
import { check, MlxError, ownHandle, type SymbolName, takeHandle } from "../../ffi/error.ts";
import { mlxc } from "../../ffi/lib.ts";
import { handleList, type Pointer, readInts, viewMemory } from "../../ffi/memory.ts";
import { out } from "../../ffi/slot.ts";
import {
  bytesOf,
  codeOf,
  type Dtype,
  dtypeOf,
  dtypes,
  type HostArray,
  hostArrays,
  isInteger,
  toBfloat16,
} from "./dtype.ts";
import { openScope, Scope } from "./scope.ts";
import { stream } from "./stream.ts";

let live = 0;

/** Number of arrays that have not been freed. */
export function liveArrays(): number {
  return live;
}

export class MlxArray {
  handle: Pointer | null;
  /** The scope that will free this array; undefined if the array's holder frees it. */
  scope: Scope | undefined;
  #shape: readonly number[] | undefined;

  constructor(handle: Pointer) {
    this.handle = handle;
    live += 1;
    const scope = openScope();
    if (!scope) {
      this.free();
      throw new Error("an array was created outside any scope: nothing would free it");
    }
    scope.own(this);
  }

  get shape(): readonly number[] {
    const handle = this.#alive();
    if (!this.#shape) {
      const ndim = mlxc.mlx_array_ndim(handle);
      this.#shape = ndim === 0 ? [] : readInts(mlxc.mlx_array_shape(handle)!, ndim);
    }
    return this.#shape;
  }

  get ndim(): number {
    return this.shape.length;
  }

  get dtype(): Dtype {
    return dtypes[mlxc.mlx_array_dtype(this.#alive())]!;
  }

  /** Number of elements. */
  get size(): number {
    return mlxc.mlx_array_size(this.#alive());
  }

  get bytes(): number {
    return mlxc.mlx_array_nbytes(this.#alive());
  }

  /** Evaluates the array and returns a writable view of its memory. Throws if it is not in row order. */
  memory(): ArrayBuffer {
    if (!this.#evaluatedInRowOrder()) {
      throw new MlxError("memory", "the array is a strided view of another");
    }
    if (this.size === 0) return new ArrayBuffer(0);
    const symbol = "mlx_array_data_uint8";
    return viewMemory(ownHandle(symbol, mlxc[symbol](this.handle)), this.bytes);
  }

  /** Returns a copy of the elements in row order. bfloat16 comes as bits: read it with `numbers`. */
  data(): HostArray {
    if (this.#evaluatedInRowOrder()) return new hostArrays[this.dtype](this.memory().slice(0));
    using _ = new Scope();
    const status = mlxc.mlx_contiguous(out.view, this.handle, false, stream);
    return make("mlx_contiguous", status).data();
  }

  /** Returns a copy of the elements as numbers, in row order. */
  numbers(): number[] {
    if (this.dtype === "bfloat16") {
      using _ = new Scope();
      const float32 = codeOf("float32");
      return make("mlx_astype", mlxc.mlx_astype(out.view, this.handle, float32, stream)).numbers();
    }
    const data = this.data();
    return data instanceof Float32Array ? listed(data) : Array.from(data, Number);
  }

  evaluate(): void {
    check("mlx_array_eval", mlxc.mlx_array_eval(this.#alive()));
  }

  /** Frees the handle. Only the array's owner may call it, and only once. */
  free(): void {
    mlxc.mlx_array_free(this.release());
  }

  /** Passes the handle to the caller, who frees it; this array can no longer be used. */
  release(): Pointer {
    const handle = this.#alive();
    this.handle = null;
    this.scope = undefined;
    live -= 1;
    return handle;
  }

  #evaluatedInRowOrder(): boolean {
    this.evaluate();
    const symbol = "_mlx_array_is_row_contiguous";
    check(symbol, mlxc[symbol](out.view, this.handle));
    return out.take() === 1;
  }

  #alive(): Pointer {
    return handleOf(this);
  }
}

/** Wraps the array that an FFI call wrote to the shared output slot. */
export function make(symbol: SymbolName, status: number): MlxArray {
  return new MlxArray(takeHandle(symbol, status));
}

/** Creates an array with a copy of these elements. Numbers become float32 unless a dtype is given. */
export function array(
  values: number | readonly number[] | HostArray,
  shape?: readonly number[],
  dtype?: Dtype,
): MlxArray {
  const data = ArrayBuffer.isView(values) ? values : hostData([values].flat(), dtype ?? "float32");
  const type = dtype ?? dtypeOf(data);
  const dims = shape ?? (typeof values === "number" ? [] : [data.length]);
  const bytes = dims.reduce((n, dim) => n * dim, bytesOf(type));
  if (bytes !== data.byteLength || dims.some((dim) => dim < 0 || !Number.isInteger(dim))) {
    const wanted = `shape (${dims}) of ${type} takes ${bytes} bytes`;
    throw new MlxError("array", `${wanted}, the data has ${data.byteLength}`);
  }
  const symbol = "mlx_array_new_data";
  return new MlxArray(
    ownHandle(
      symbol,
      mlxc[symbol](data.length ? data : padding, ints(dims), dims.length, codeOf(type)),
    ),
  );
}

/** An array or a number. A number takes the other operand's type if that type can hold it, as in Python. */
export type Operand = MlxArray | number;

export function operand(value: Operand, like: MlxArray): MlxArray {
  if (value instanceof MlxArray) return value;
  const { dtype } = like;
  const loses = (isInteger(dtype) || dtype === "bool") && !Number.isInteger(value);
  return array(value, [], loses ? "float32" : dtype === "bool" ? "int32" : dtype);
}

/** Evaluates the arrays together and waits for them. */
export function evaluate(...arrays: readonly MlxArray[]): void {
  withVector(arrays, (vector) => check("mlx_eval", mlxc.mlx_eval(vector)));
}

/** Starts the evaluation without waiting for it; reading one of the arrays waits. */
export function asyncEvaluate(...arrays: readonly MlxArray[]): void {
  withVector(arrays, (vector) => check("mlx_async_eval", mlxc.mlx_async_eval(vector)));
}

/** Returns the arrays as an mlx-c vector, which the caller frees. */
export function vectorOf(arrays: readonly MlxArray[]): Pointer {
  const symbol = "mlx_vector_array_new_data";
  const handles = handleList(arrays.map(handleOf));
  return ownHandle(symbol, mlxc[symbol](arrays.length ? handles : padding, handles.length));
}

/** Passes the arrays to one call as an mlx-c vector. */
export function withVector<T>(arrays: readonly MlxArray[], call: (vector: Pointer) => T): T {
  const vector = vectorOf(arrays);
  try {
    return call(vector);
  } finally {
    mlxc.mlx_vector_array_free(vector);
  }
}

/** Returns the arrays of an mlx-c vector, and frees the vector. */
export function unpackVector(vector: Pointer): MlxArray[] {
  const arrays = vectorArrays(vector);
  mlxc.mlx_vector_array_free(vector);
  return arrays;
}

/** Returns the arrays of an mlx-c vector, which remains its owner's. */
export function vectorArrays(vector: Pointer): MlxArray[] {
  const symbol = "mlx_vector_array_get";
  return Array.from({ length: mlxc.mlx_vector_array_size(vector) }, (_, i) =>
    make(symbol, mlxc[symbol](out.view, vector, i)),
  );
}

/** Returns a shape or a list of axes as a C array. */
export function ints(values: readonly number[]): Int32Array {
  return values.length ? Int32Array.from(values) : noInts;
}

// An empty typed array has no address, so C gets this array instead, with length 0.
const padding = new Uint8Array(8);
const noInts = new Int32Array(1);

function handleOf(array: MlxArray): Pointer {
  if (array.handle === null) throw new MlxError("array", "used after it was freed");
  return array.handle;
}

/** Returns the handle for a nullable C argument. Throws if the array was freed, because its handle is null too. */
export function optionalHandle(array: MlxArray | undefined): Pointer | null {
  return array === undefined ? null : handleOf(array);
}

/** Returns the axis counted from the front, for operations whose axes mlx-c does not check. */
export function axisOf(op: string, x: MlxArray, axis: number): number {
  const at = axis < 0 ? axis + x.ndim : axis;
  if (at in x.shape) return at;
  throw new MlxError(op, `there is no axis ${axis} in shape (${x.shape})`);
}

/** Does what Array.from does, ten times faster. */
function listed(data: Float32Array): number[] {
  const numbers: number[] = new Array(data.length);
  for (let i = 0; i < data.length; i++) numbers[i] = data[i]!;
  return numbers;
}

function hostData(values: readonly number[], dtype: Dtype): HostArray {
  if (dtype === "bfloat16") {
    const bits = new Uint16Array(values.length);
    toBfloat16(Float32Array.from(values), bits);
    return bits;
  }
  if (dtype === "uint64") return BigUint64Array.from(values, BigInt);
  if (dtype === "int64") return BigInt64Array.from(values, BigInt);
  if (dtype === "bool") return Uint8Array.from(values, (value) => (value ? 1 : 0));
  if (dtype === "complex64") return Float32Array.from(values.flatMap((real) => [real, 0]));
  const data = hostArrays[dtype].from(values);
  const wrapped = isInteger(dtype) ? values.find((value, i) => data[i] !== value) : undefined;
  if (wrapped !== undefined) throw new MlxError("array", `${wrapped} does not fit ${dtype}`);
  return data;
}
