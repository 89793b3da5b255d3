// Conversions between native memory and JavaScript data.
import { CString, JSCallback, type Pointer, ptr, read, toArrayBuffer } from "bun:ffi";

export type { Pointer };

/** A view of native memory, not a copy: valid while its owner lives. */
export function viewMemory(address: Pointer, bytes: number): ArrayBuffer {
  return toArrayBuffer(address, 0, bytes);
}

/** Address of an array's bytes, if it has at least a page: such arrays do not move. */
export function addressOf(bytes: Uint8Array): Pointer {
  return ptr(bytes);
}

export function readInts(address: Pointer, count: number): number[] {
  return Array.from({ length: count }, (_, i) => read.i32(address, i * 4));
}

/** A copy of the C string at this address. */
export function readText(address: Pointer): string {
  return new CString(address).toString();
}

/** The text as C takes it: UTF-8, ended by a zero byte. */
export function cText(text: string): Uint8Array {
  if (text.includes("\0")) throw new TypeError("text with a NUL character cannot be passed to C");
  return new TextEncoder().encode(`${text}\0`);
}

/** `char**`. The list holds addresses only: keep `texts` alive until the call returns. */
export function cTextList(texts: readonly Uint8Array[]): BigUint64Array {
  return BigUint64Array.from(texts, (text) => BigInt(ptr(text)));
}

/** Handles as a C array. */
export function handleList(handles: readonly Pointer[]): BigUint64Array {
  return BigUint64Array.from(handles, BigInt);
}

/** `mlx_optional_int` and `mlx_optional_dtype`: one word, the value low, `has_value` in bit 32. */
export function optionalInt(value: number | undefined): number {
  return value === undefined ? 0 : (value >>> 0) + 2 ** 32;
}

/** A C function `int f(T* result, T input)` that calls back into JavaScript, on this thread only. */
export function nativeCallback(call: (result: Pointer, input: Pointer) => number): JSCallback {
  return new JSCallback(call, { args: ["ptr", "ptr"], returns: "i32" });
}

/** Writes a handle through an out-parameter that C passed to us. */
export function writeHandle(address: Pointer, handle: Pointer): void {
  new BigUint64Array(viewMemory(address, 8))[0] = BigInt(handle);
}
