// Converts between native memory and JavaScript data.
import { CString, JSCallback, type Pointer, ptr, read, toArrayBuffer } from "bun:ffi";

export type { Pointer };

/** Returns a view of native memory, not a copy: valid while the memory's owner lives. */
export function viewMemory(address: Pointer, bytes: number): ArrayBuffer {
  return toArrayBuffer(address, 0, bytes);
}

/** Returns the address of an array's bytes. The array must be at least a page long: smaller arrays may move. */
export function addressOf(bytes: Uint8Array): Pointer {
  return ptr(bytes);
}

export function readInts(address: Pointer, count: number): number[] {
  return Array.from({ length: count }, (_, i) => read.i32(address, i * 4));
}

/** Copies the C string at this address. */
export function readText(address: Pointer): string {
  return new CString(address).toString();
}

/** Encodes the text as a C string: UTF-8, ended by a zero byte. */
export function cText(text: string): Uint8Array {
  if (text.includes("\0")) throw new TypeError("text with a NUL character cannot be passed to C");
  return new TextEncoder().encode(`${text}\0`);
}

/** Makes a `char**` of C strings. The list holds addresses only: keep `texts` alive until the call returns. */
export function cTextList(texts: readonly Uint8Array[]): BigUint64Array {
  return BigUint64Array.from(texts, (text) => BigInt(ptr(text)));
}

/** Makes a C array of handles. */
export function handleList(handles: readonly Pointer[]): BigUint64Array {
  return BigUint64Array.from(handles, BigInt);
}

/** Packs an `mlx_optional_int` or `mlx_optional_dtype` in one word: the value low, `has_value` in bit 32. */
export function optionalInt(value: number | undefined): number {
  return value === undefined ? 0 : (value >>> 0) + 2 ** 32;
}

/** Makes a C function `int f(T* result, T input)` that calls back into JavaScript, on this thread only. */
export function nativeCallback(call: (result: Pointer, input: Pointer) => number): JSCallback {
  return new JSCallback(call, { args: ["ptr", "ptr"], returns: "i32" });
}

/** Writes a handle through an out-parameter that C passed to us. */
export function writeHandle(address: Pointer, handle: Pointer): void {
  new BigUint64Array(viewMemory(address, 8))[0] = BigInt(handle);
}
