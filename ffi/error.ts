// Turns MLX's errors into exceptions that name the operation. mlx-c's default handler prints and exits the process,
// so call `catchErrors` first. A process has a single handler, which runs on the thread that set it last: errors must
// occur on that thread.
import { CString, JSCallback, type Pointer } from "bun:ffi";
import { mlxc } from "./lib.ts";
import { out } from "./slot.ts";
import type { cudaSymbols, ownSymbols, symbols } from "./symbols.ts";

export type SymbolName = keyof typeof symbols | keyof typeof ownSymbols | keyof typeof cudaSymbols;

export class MlxError extends Error {
  /** Name of the operation that failed, as in mlx-c but without the prefix: "matmul", "fast_rms_norm". */
  readonly op: string;

  constructor(op: string, reason: string) {
    super(`${op}: ${reason}`);
    this.name = "MlxError";
    this.op = op;
  }
}

let lastMessage = "";

const handler = new JSCallback(
  (message: Pointer) => {
    // Removes the source position that mlx-c adds, which is of no use to the caller.
    lastMessage = new CString(message).toString().replace(/ at \S+:\d+$/, "");
  },
  { args: ["ptr", "ptr"], returns: "void" },
);

/** Makes MLX's errors arrive on this thread. */
export function catchErrors(): void {
  mlxc.mlx_set_error_handler(handler.ptr, null, null);
}

/** Throws unless the call succeeded. */
export function check(symbol: SymbolName, status: number): void {
  if (status !== 0) throw failure(symbol);
}

/** Returns the handle that the call wrote to the shared slot. Throws if the call failed. */
export function takeHandle(symbol: SymbolName, status: number): Pointer {
  if (status !== 0) throw failure(symbol);
  return out.takePointer();
}

/** Returns the handle that the call returned. Throws if it is null. */
export function ownHandle(symbol: SymbolName, handle: Pointer | null): Pointer {
  if (handle === null) throw failure(symbol);
  return handle;
}

function failure(symbol: SymbolName): MlxError {
  out.clear();
  const reason = lastMessage || "failed without a message";
  lastMessage = "";
  return new MlxError(symbol.replace(/^_?mlx_/, ""), reason);
}
