// Which array was made of which, seen at the FFI: every call of mlx-c that makes an array or a list of arrays
// is a node of a graph, with what the call took as its parents. It tells what a device that orders work
// by data alone knows of the order of two launches.
import { mlxc } from "../../ffi/lib.ts";
import type { MlxArray } from "../../src/mlx/array.ts";

export class DataNode {
  parents: readonly DataNode[];
  /** The values it was made of, where they came from the host. */
  readonly host: Int32Array | undefined;
  /** Whether the host has waited for it. */
  isDone = false;

  constructor(parents: readonly DataNode[], host?: Int32Array) {
    this.parents = parents;
    this.host = host;
  }
}

type Call = (...args: unknown[]) => unknown;

/** What a device of a test's own does at calls that MLX would hand to its device. */
export type FlowWatcher = {
  /** A call has made `node` of these; its handle is the caller's. */
  made(symbol: string, node: DataNode, taken: readonly DataNode[], handle: number): void;
  /** Their evaluation begins, and is not waited for. MLX does nothing. */
  launched(nodes: readonly DataNode[]): void;
  /** The host waits for these. MLX evaluates them then. */
  awaited(nodes: readonly DataNode[]): void;
  /** The host waits for all that was launched. */
  synchronized(): void;
};

export class DataFlow {
  readonly #nodes = new Map<number, DataNode>();
  readonly #before = new Map<string, Call>();
  readonly #watcher: FlowWatcher | undefined;

  /** Watches all calls until `stop`. */
  constructor(watcher?: FlowWatcher) {
    this.#watcher = watcher;
    const functions = mlxc as unknown as Record<string, Call>;
    for (const [symbol, call] of Object.entries(functions)) {
      this.#before.set(symbol, call);
      functions[symbol] = (...args) => this.#watch(symbol, call, args);
    }
  }

  stop(): void {
    for (const [symbol, call] of this.#before)
      (mlxc as unknown as Record<string, Call>)[symbol] = call;
  }

  /** Of an array that was there before, a node without parents. */
  node(array: MlxArray): DataNode {
    return this.#nodes.getOrInsertComputed(array.handle!, () => new DataNode([]));
  }

  /** The integers that an array was made of on the host, wherever it was moved since. */
  hostValues(array: MlxArray): Int32Array {
    for (const node of ancestors([this.node(array)])) if (node.host) return node.host;
    throw new Error("the array does not come from the host");
  }

  /** Whether work that takes these arrays comes after `made`, for the host or by data. */
  isAfter(made: DataNode, taken: readonly DataNode[]): boolean {
    if (made.isDone) return true;
    for (const node of ancestors(taken)) if (node === made) return true;
    return false;
  }

  #watch(symbol: string, call: Call, args: unknown[]): unknown {
    const taken = args.flatMap((arg) => this.#known(arg));
    if (symbol === "mlx_async_eval" && this.#watcher) {
      this.#watcher.launched(taken);
      return 0;
    }
    const isAwaited = symbol === "mlx_eval" || symbol === "mlx_array_eval";
    if (isAwaited) this.#watcher?.awaited(taken);
    if (symbol === "mlx_synchronize") this.#watcher?.synchronized();
    const result = call(...args);
    if (isAwaited) finish(taken);
    const [slot, data] = args;
    if (symbol === "mlx_array_new_data") {
      const host = slot instanceof Int32Array ? slot.slice() : undefined;
      this.#nodes.set(result as number, new DataNode([], host));
    } else if (symbol.endsWith("_new_data")) {
      this.#nodes.set(result as number, new DataNode(taken));
    } else if (isSlot(slot)) {
      const handle = slot[0]! + slot[1]! * 2 ** 32;
      const host = data instanceof Int32Array && taken.length === 0 ? data.slice() : undefined;
      if (handle > 2 ** 16) {
        const node = new DataNode(taken, host);
        this.#nodes.set(handle, node);
        this.#watcher?.made(symbol, node, taken, handle);
      }
    }
    return result;
  }

  /** The nodes of a handle, or of a list of handles. */
  #known(arg: unknown): DataNode[] {
    if (typeof arg === "number") {
      const node = this.#nodes.get(arg);
      return node ? [node] : [];
    }
    if (arg instanceof BigUint64Array) return [...arg].flatMap((each) => this.#known(Number(each)));
    return [];
  }
}

function isSlot(arg: unknown): arg is Uint32Array {
  return arg instanceof Uint32Array && arg.buffer.byteLength === 8;
}

/** These nodes and all that they were made of, but what the host has waited for. Nearest first. */
function* ancestors(nodes: readonly DataNode[]): Iterable<DataNode> {
  const seen = new Set<DataNode>(nodes);
  for (const node of seen) {
    yield node;
    if (!node.isDone) for (const parent of node.parents) seen.add(parent);
  }
}

function finish(nodes: readonly DataNode[]): void {
  for (const node of [...ancestors(nodes)]) {
    node.isDone = true;
    node.parents = [];
  }
}
