// MLX's errors become exceptions that name the operation. mlx-c's default handler prints and exits the
// process, so `catchErrors` comes before any other call. There is one handler per process: it belongs to
// the thread that set it last, the one that calls MLX.
import { CString, JSCallback, type Pointer } from "bun:ffi";
import { mlxc } from "./lib.ts";
import { out } from "./slot.ts";
import type { cudaSymbols, ownSymbols, symbols } from "./symbols.ts";

export type SymbolName = keyof typeof symbols | keyof typeof ownSymbols | keyof typeof cudaSymbols;

export class MlxError extends Error {
  /** The operation that failed, by mlx-c's name without its prefix: "matmul", "fast_rms_norm". */
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
    // mlx-c adds its own source position, which is of no use to the caller.
    lastMessage = new CString(message).toString().replace(/ at \S+:\d+$/, "");
  },
  { args: ["ptr", "ptr"], returns: "void" },
);

/** Routes the process's MLX errors to this thread. */
export function catchErrors(): void {
  mlxc.mlx_set_error_handler(handler.ptr, null, null);
}

/** Throws unless the call succeeded. */
export function check(symbol: SymbolName, status: number): void {
  if (status !== 0) throw failure(symbol);
}

/** The handle that the call wrote to the shared slot. */
export function takeHandle(symbol: SymbolName, status: number): Pointer {
  if (status !== 0) throw failure(symbol);
  return out.takePointer();
}

/** The handle that the call returned. */
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
