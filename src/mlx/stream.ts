// The stream that operations run on: one per thread, set when MLX is opened (runtime.ts).
// Arrays and streams belong to the thread that created them.
import { check, ownHandle } from "../../ffi/error.ts";
import { mlxc } from "../../ffi/lib.ts";
import type { Pointer } from "../../ffi/memory.ts";

export let stream: Pointer;

export class Stream {
  #handle: Pointer | undefined;

  constructor(device: "cpu" | "gpu") {
    const handle = mlxc.mlx_device_new_type(device === "gpu" ? 1 : 0, 0);
    this.#handle = ownHandle("mlx_stream_new_device", mlxc.mlx_stream_new_device(handle));
    mlxc.mlx_device_free(handle);
  }

  /** Makes this the stream that new operations run on. */
  use(): void {
    stream = this.#alive();
    check("mlx_set_default_stream", mlxc.mlx_set_default_stream(stream));
  }

  /** Waits for all operations launched on this stream. */
  synchronize(): void {
    check("mlx_synchronize", mlxc.mlx_synchronize(this.#alive()));
  }

  get handle(): Pointer {
    return this.#alive();
  }

  free(): void {
    mlxc.mlx_stream_free(this.#alive());
    this.#handle = undefined;
  }

  #alive(): Pointer {
    if (!this.#handle) throw new Error("the stream was freed");
    return this.#handle;
  }
}
