// Records the graph of a step without computing it, to estimate its memory. The step is built as usual while the FFI is
// intercepted: every call that creates an array adds a node with its size and inputs. Nothing is evaluated, no kernel
// is compiled, and memory is allocated only for a step's integers.
import { mlxc } from "../../ffi/lib.ts";
import { addressOf, handleList, type Pointer, readInts } from "../../ffi/memory.ts";
import { Slot } from "../../ffi/slot.ts";
import { operations } from "../../ffi/symbols.ts";
import { ints } from "./array.ts";
import { stream } from "./stream.ts";

export type SketchNode = {
  symbol: string;
  shape: readonly number[];
  dtype: number;
  bytes: number;
  parents: readonly SketchNode[];
  /** Whether the array exists before the step: a weight, a pool, a host value. */
  isResident: boolean;
};

/** The arrays of a step that its outputs depend on, in order of creation. */
export type Sketch = {
  nodes: readonly SketchNode[];
  /** Arrays still referenced when the step was launched. */
  held: ReadonlySet<SketchNode>;
};

type Call = (...args: unknown[]) => unknown;

type Output = { shape: Int32Array; dtype: number };

/**
 * Sketches each launch once; a launch is a function that evaluates the outputs of one step. `prepare` creates weights
 * and pools. The first launch also runs once unrecorded, to create arrays that are kept for later steps.
 */
export function sketchesOf(
  prepare: () => { launches: readonly (() => void)[]; free(): void },
): Sketch[] {
  const recorder = new Recorder();
  try {
    const { launches, free } = prepare();
    try {
      launches[0]?.();
      return launches.map((launch) => {
        recorder.begin();
        launch();
        return recorder.sketch();
      });
    } finally {
      free();
    }
  } finally {
    recorder.stop();
  }
}

const noValues = new Uint8Array(new ArrayBuffer(2 ** 20));

class Recorder {
  readonly #calls: Readonly<Record<string, Call>>;
  /** Graph nodes by array handle, and lists of nodes by the handle of an array vector. */
  readonly #arrays = new Map<number, SketchNode>();
  readonly #vectors = new Map<number, readonly SketchNode[]>();
  readonly #configurations = new Map<number, Output[]>();
  readonly #slot = new Slot();
  #nodes: SketchNode[] = [];
  #evaluated: readonly SketchNode[] = [];
  #held = new Set<SketchNode>();
  #isBegun = false;
  /** Whether MLX is tracing a function that it compiles to one launch. */
  #isTracing = false;
  #nextHandle = 1;

  constructor() {
    const functions = mlxc as unknown as Record<string, Call>;
    this.#calls = { ...functions };
    for (const [symbol, call] of Object.entries(this.#calls)) {
      const own = this.#inPlaceOf(symbol);
      functions[symbol] = own ?? ((...args) => this.#watch(symbol, call, args));
    }
  }

  stop(): void {
    Object.assign(mlxc, this.#calls);
  }

  /** Begins a step: arrays that already exist are resident. */
  begin(): void {
    this.#isBegun = true;
    this.#nodes = [];
    this.#evaluated = [];
    for (const node of this.#arrays.values()) node.isResident = true;
  }

  sketch(): Sketch {
    const needed = new Set(this.#evaluated);
    for (const node of needed) for (const parent of node.parents) needed.add(parent);
    return {
      nodes: this.#nodes.filter((node) => needed.has(node) && !node.isResident),
      held: this.#held,
    };
  }

  /** Returns the replacement for a call that must not run in a sketch; undefined for other calls. */
  #inPlaceOf(symbol: string): Call | undefined {
    if (symbol === "mlx_eval" || symbol === "mlx_async_eval") {
      return (vector) => this.#evaluate(this.#vectors.get(vector as number) ?? []);
    }
    if (symbol === "mlx_array_eval" || symbol === "mlx_serve_compile_kernel") return () => 0;
    // Reads of small arrays return zeros: for example parameters of kernels, or sampled tokens.
    if (symbol === "mlx_array_data_uint8") {
      return (handle) => {
        const bytes = this.#calls.mlx_array_nbytes!(handle) as number;
        if (bytes <= noValues.length) return addressOf(noValues);
        throw new Error(`the arrays of a sketch have no values: ${bytes} bytes were read`);
      };
    }
    if (symbol === "_mlx_array_is_row_contiguous") {
      return (slot) => {
        (slot as Uint32Array)[0] = 1;
        return 0;
      };
    }
    const [, part] = /^mlx_fast_(?:metal|cuda)_kernel_(\w+)$/.exec(symbol) ?? [];
    return part === undefined ? undefined : this.#inPlaceOfKernel(symbol, part);
  }

  #inPlaceOfKernel(symbol: string, part: string): Call {
    switch (part) {
      case "new":
        return () => this.#nextHandle++;
      case "config_new":
        return () => {
          this.#configurations.set(this.#nextHandle, []);
          return this.#nextHandle++;
        };
      case "config_add_output_arg":
        return (config, shape, rank, dtype) => {
          const kept = (shape as Int32Array).slice(0, rank as number);
          this.#configurations.get(config as number)!.push({ shape: kept, dtype: dtype as number });
          return 0;
        };
      case "apply":
        return (slot, _, vector, config) => {
          const outputs = this.#configurations.get(config as number)!;
          return this.#launchKernel(symbol, slot as Uint32Array, vector as number, outputs);
        };
      default:
        return () => 0;
    }
  }

  /** Returns lazy zeros as the outputs of a kernel. */
  #launchKernel(symbol: string, slot: Uint32Array, vector: number, outputs: Output[]): number {
    const made = outputs.map(({ shape, dtype }) => {
      const { mlx_zeros } = this.#calls;
      mlx_zeros!(this.#slot.view, ints([...shape]), shape.length, dtype, stream);
      return this.#slot.takePointer();
    });
    const list = this.#calls.mlx_vector_array_new_data!(handleList(made), made.length) as number;
    for (const each of made) this.#calls.mlx_array_free!(each);
    slot[0] = list % 2 ** 32;
    slot[1] = Math.floor(list / 2 ** 32);
    this.#addList(symbol, list, this.#vectors.get(vector) ?? []);
    return 0;
  }

  #evaluate(nodes: readonly SketchNode[]): number {
    // Ignores evaluations after the step's first: they only read outputs.
    if (!this.#isBegun || this.#evaluated.length > 0) return 0;
    this.#evaluated = nodes;
    this.#held = new Set([...nodes, ...this.#arrays.values()]);
    return 0;
  }

  #watch(symbol: string, call: Call, args: unknown[]): unknown {
    const [first, second] = args;
    switch (symbol) {
      case "mlx_array_free":
        this.#arrays.delete(first as number);
        return call(...args);
      case "mlx_vector_array_free":
        this.#vectors.delete(first as number);
        return call(...args);
      case "mlx_array_new_data": {
        const handle = call(...args) as number;
        if (handle) this.#add(symbol, handle, []).isResident = true;
        return handle;
      }
      case "mlx_vector_array_new_data": {
        const vector = call(...args) as number;
        const handles = first instanceof BigUint64Array ? [...first].map(Number) : [];
        this.#vectors.set(
          vector,
          handles.flatMap((each) => this.#arrays.get(each) ?? []),
        );
        return vector;
      }
      case "mlx_vector_array_get": {
        const status = call(...args);
        const node = this.#vectors.get(second as number)?.[args[2] as number];
        if (node) this.#arrays.set(handleIn(first as Uint32Array), node);
        return status;
      }
      case "mlx_closure_apply": {
        const isTracing = this.#isTracing;
        this.#isTracing = true;
        const status = call(...args);
        this.#isTracing = isTracing;
        const list = handleIn(first as Uint32Array);
        if (list) this.#addList(symbol, list, this.#vectors.get(args[2] as number) ?? []);
        return status;
      }
      default:
        return isOperation(args) ? this.#operation(symbol, call, args) : call(...args);
    }
  }

  #operation(symbol: string, call: Call, args: unknown[]): unknown {
    const parents = args.flatMap((arg) => {
      if (typeof arg !== "number") return [];
      return this.#arrays.get(arg) ?? this.#vectors.get(arg) ?? [];
    });
    const status = call(...args);
    const handle = handleIn(args[0] as Uint32Array);
    if (handle && operations.lists.has(symbol)) this.#addList(symbol, handle, parents);
    else if (handle) this.#add(symbol, handle, parents);
    return status;
  }

  #addList(symbol: string, list: number, parents: readonly SketchNode[]): void {
    const count = this.#calls.mlx_vector_array_size!(list) as number;
    const nodes = Array.from({ length: count }, (_, i) => {
      this.#calls.mlx_vector_array_get!(this.#slot.view, list, i);
      const handle = this.#slot.take();
      const node = this.#add(symbol, handle, parents);
      this.#arrays.delete(handle);
      this.#calls.mlx_array_free!(handle);
      return node;
    });
    this.#vectors.set(list, nodes);
  }

  #add(symbol: string, handle: number, parents: readonly SketchNode[]): SketchNode {
    const { mlx_array_ndim, mlx_array_shape, mlx_array_dtype, mlx_array_nbytes } = this.#calls;
    const rank = mlx_array_ndim!(handle) as number;
    const shape = rank === 0 ? [] : readInts(mlx_array_shape!(handle) as Pointer, rank);
    const dtype = mlx_array_dtype!(handle) as number;
    const bytes = mlx_array_nbytes!(handle) as number;
    const [source] = parents;
    // A cast to the array's own type returns the array itself.
    const isSame = symbol === "mlx_astype" && source?.dtype === dtype;
    if (isSame) {
      this.#arrays.set(handle, source);
      return source;
    }
    const node = { symbol, shape, dtype, bytes, parents, isResident: false };
    this.#arrays.set(handle, node);
    if (!this.#isTracing) this.#nodes.push(node);
    return node;
  }
}

/** Whether a call is an operation: all take the slot of their output first and the stream last. */
function isOperation(args: readonly unknown[]): boolean {
  const [slot] = args;
  return slot instanceof Uint32Array && slot.buffer.byteLength === 8 && args.at(-1) === stream;
}

function handleIn(slot: Uint32Array): number {
  return slot[0]! + slot[1]! * 2 ** 32;
}
