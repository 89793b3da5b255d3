// Collectives of a group of processes (ranks), by MLX. Every rank must build the same collectives in the same order,
// because each collective waits for all ranks. MLX finds the group in environment variables: MLX_RANK, and for a ring
// over TCP MLX_HOSTFILE.
import { takeHandle } from "../../ffi/error.ts";
import { has, mlxc } from "../../ffi/lib.ts";
import { cText, type Pointer } from "../../ffi/memory.ts";
import { out } from "../../ffi/slot.ts";
import { ints, type MlxArray, make } from "./array.ts";
import { codeOf, type Dtype } from "./dtype.ts";
import { add, concatenate, zeros } from "./ops.ts";
import { Stream, stream } from "./stream.ts";

/** Transports: a ring over TCP, which every build of MLX has; NVIDIA's NCCL; shared memory of one machine. */
export type Connections = "ring" | "nccl" | "shared";

/** Whether ranks can use shared memory. False with a libmlxc of another build. */
export function canShareMemory(): boolean {
  return has("mlx_serve_shared_group");
}

/** Bytes that a rank sends in an all-sum, per byte of its array. A ring sends all but one of `size` parts, twice. */
const sumShare: Record<Connections, (size: number) => number> = {
  ring: (size) => (2 * (size - 1)) / size,
  nccl: (size) => (2 * (size - 1)) / size,
  shared: () => 1,
};

export type Group = {
  readonly rank: number;
  readonly size: number;
  /** Returns the sum of every rank's array. */
  allSum(x: MlxArray): MlxArray;
  /** Concatenates the arrays of all ranks, of equal shape, along the first axis. */
  allGather(x: MlxArray): MlxArray;
  /** Broadcasts the first rank's array; on other ranks `x` gives only shape and type. */
  fromFirst(x: MlxArray): MlxArray;
  /** Sends x to a neighbour in the ring, when the returned array is evaluated. */
  send(x: MlxArray, to: number): MlxArray;
  receive(shape: readonly number[], dtype: Dtype, from: number): MlxArray;
};

/** Returns a rank of a group that does not exist, for planning a model's memory. */
export function plannedGroup(rank: number, size: number): Group {
  return {
    rank,
    size,
    allSum: (x) => add(x, 0),
    allGather: (x) => concatenate(Array<MlxArray>(size).fill(x)),
    fromFirst: (x) => x,
    send: (x) => x,
    receive: (shape, dtype) => zeros(shape, dtype),
  };
}

/** A group that MLX has connected. */
export class MlxGroup implements Group {
  readonly rank: number;
  readonly size: number;
  readonly connections: Connections;
  readonly #handle: Pointer;
  /** CPU stream for the collectives of a GPU; undefined with NCCL, which runs on the GPU. */
  readonly #own: Stream | undefined;
  /** Separate stream for sends, because a send may wait for its receiver. */
  readonly #sending = new Stream("cpu");
  /** Number of collectives, bytes sent, and number and time of the measured collectives. */
  readonly traffic = { collectives: 0, bytes: 0, measured: 0, measuredMs: 0 };
  /** Whether each collective is evaluated and timed by itself. Must be equal on all ranks. */
  isMeasured = false;

  /** Connects to the group, and returns when all ranks have connected. */
  constructor(connections: Connections, backend: "cpu" | "metal" | "cuda") {
    this.connections = connections;
    this.#handle = connections === "shared" ? shareMemory() : initialize(connections);
    this.rank = mlxc.mlx_distributed_group_rank(this.#handle);
    this.size = mlxc.mlx_distributed_group_size(this.#handle);
    this.#own = backend === "cpu" || connections === "nccl" ? undefined : new Stream("cpu");
  }

  allSum(x: MlxArray): MlxArray {
    this.#count(x.bytes * sumShare[this.connections](this.size));
    return this.#run("mlx_distributed_all_sum", x);
  }

  allGather(x: MlxArray): MlxArray {
    this.#count(x.bytes * (this.size - 1));
    return this.#run("mlx_distributed_all_gather", x);
  }

  fromFirst(x: MlxArray): MlxArray {
    return this.allSum(this.rank === 0 ? x : zeros(x.shape, x.dtype));
  }

  send(x: MlxArray, to: number): MlxArray {
    this.#count(x.bytes);
    const symbol = "mlx_distributed_send";
    return make(symbol, mlxc[symbol](out.view, x.handle, to, this.#handle, this.#sending.handle));
  }

  receive(shape: readonly number[], dtype: Dtype, from: number): MlxArray {
    const symbol = "mlx_distributed_recv";
    const [sizes, code] = [ints(shape), codeOf(dtype)];
    const { length } = shape;
    const status = mlxc[symbol](out.view, sizes, length, code, from, this.#handle, this.#stream);
    return make(symbol, status);
  }

  free(): void {
    mlxc.mlx_distributed_group_free(this.#handle);
    this.#own?.free();
    this.#sending.free();
  }

  get #stream(): Pointer {
    return this.#own?.handle ?? stream;
  }

  #run(symbol: "mlx_distributed_all_sum" | "mlx_distributed_all_gather", x: MlxArray): MlxArray {
    if (this.isMeasured) x.evaluate();
    const start = performance.now();
    const made = make(symbol, mlxc[symbol](out.view, x.handle, this.#handle, this.#stream));
    if (!this.isMeasured) return made;
    made.evaluate();
    this.traffic.measured += 1;
    this.traffic.measuredMs += performance.now() - start;
    return made;
  }

  #count(bytes: number): void {
    this.traffic.collectives += 1;
    this.traffic.bytes += bytes;
  }
}

function initialize(connections: Connections): Pointer {
  const isStrict = true;
  const status = mlxc.mlx_distributed_init(out.view, isStrict, cText(connections));
  return takeHandle("mlx_distributed_init", status);
}

function shareMemory(): Pointer {
  const { MLX_SERVE_RANK_MEMORY = "", MLX_RANK, MLX_WORLD_SIZE } = process.env;
  const [rank, size] = [Number(MLX_RANK), Number(MLX_WORLD_SIZE)];
  const symbol = "mlx_serve_shared_group";
  const status = mlxc[symbol](out.view, cText(MLX_SERVE_RANK_MEMORY), rank, size);
  return takeHandle(symbol, status);
}
