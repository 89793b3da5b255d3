// MLX's element types, in the order of `mlx_dtype`, and the typed array of each on the host.

export const dtypes = [
  "bool",
  "uint8",
  "uint16",
  "uint32",
  "uint64",
  "int8",
  "int16",
  "int32",
  "int64",
  "float16",
  "float32",
  "float64",
  "bfloat16",
  "complex64",
] as const;

export type Dtype = (typeof dtypes)[number];

export type HostArray =
  | Uint8Array
  | Uint16Array
  | Uint32Array
  | BigUint64Array
  | Int8Array
  | Int16Array
  | Int32Array
  | BigInt64Array
  | Float16Array
  | Float32Array
  | Float64Array;

/** Typed arrays on the host. JavaScript has none for bfloat16 and complex64: they are read as bits and as pairs. */
export const hostArrays = {
  bool: Uint8Array,
  uint8: Uint8Array,
  uint16: Uint16Array,
  uint32: Uint32Array,
  uint64: BigUint64Array,
  int8: Int8Array,
  int16: Int16Array,
  int32: Int32Array,
  int64: BigInt64Array,
  float16: Float16Array,
  float32: Float32Array,
  float64: Float64Array,
  bfloat16: Uint16Array,
  complex64: Float32Array,
} as const;

const itemBytes: Record<Dtype, number> = {
  bool: 1,
  uint8: 1,
  uint16: 2,
  uint32: 4,
  uint64: 8,
  int8: 1,
  int16: 2,
  int32: 4,
  int64: 8,
  float16: 2,
  float32: 4,
  float64: 8,
  bfloat16: 2,
  complex64: 8,
};

export function bytesOf(dtype: Dtype): number {
  return itemBytes[dtype];
}

export function codeOf(dtype: Dtype): number {
  return dtypes.indexOf(dtype);
}

export function isHalf(dtype: Dtype): boolean {
  return dtype === "bfloat16" || dtype === "float16";
}

export function isInteger(dtype: Dtype): boolean {
  return dtype.startsWith("int") || dtype.startsWith("uint");
}

/** The element type that a typed array holds. */
export function dtypeOf(data: HostArray): Dtype {
  for (const dtype of dtypes) {
    // A Uint8Array holds uint8, although bool is stored in a Uint8Array too.
    if (dtype !== "bool" && data instanceof hostArrays[dtype]) return dtype;
  }
  throw new TypeError(`no MLX element type for ${data.constructor.name}`);
}

/** Writes numbers as bfloat16 bits, rounded to nearest, ties to even; NaN stays NaN. */
export function toBfloat16(numbers: Float32Array, target: Uint16Array): void {
  const bits = new Uint32Array(numbers.buffer, numbers.byteOffset, numbers.length);
  for (let i = 0; i < bits.length; i++) {
    const word = bits[i]!;
    const isNaN = (word & 0x7fff_ffff) > 0x7f80_0000;
    target[i] = isNaN ? (word >>> 16) | 0x40 : (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
  }
}
