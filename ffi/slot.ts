// Out-parameters: mlx-c writes a handle, a size or a flag through a pointer that we give it.
//
// The view has an ArrayBuffer of its own and is passed as "buffer": the storage of a small typed array
// may move when the JIT recompiles, and an address taken before is then stale. mlx-c assigns *through*
// a slot that is not null, so a slot is zero whenever no call is under way.
import type { Pointer } from "bun:ffi";

export class Slot {
  readonly view = new Uint32Array(new ArrayBuffer(8));

  /** The 64-bit value that the call left here. */
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

/** The slot of every call that runs no JavaScript before it returns. */
export const out = new Slot();
