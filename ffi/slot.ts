// Out-parameters: mlx-c writes a handle, a size or a flag through a pointer that we pass.
//
// The view has its own ArrayBuffer and is passed as "buffer": the storage of a small typed array may
// move when the JIT recompiles, which leaves an address taken earlier stale. mlx-c treats a slot that is
// not null as a handle to reuse, so a slot is zero between calls.
import type { Pointer } from "bun:ffi";

export class Slot {
  readonly view = new Uint32Array(new ArrayBuffer(8));

  /** Returns the 64-bit value that the call left here, and clears the slot. */
  take(): number {
    const value = this.view[0]! + this.view[1]! * 2 ** 32;
    this.clear();
    return value;
  }

  takePointer(): Pointer {
    return this.take() as Pointer;
  }

  clear(): void {
    this.view[0] = 0;
    this.view[1] = 0;
  }
}

/** The slot that all calls share if they run no JavaScript before they return. */
export const out = new Slot();
