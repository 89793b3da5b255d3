// A GPU that runs launches in random orders. The engine builds and launches its steps as on Metal, and nothing is
// computed until the host waits for something. Then launches run one by one: any of those whose inputs were made by
// launches that have run, whichever step they belong to, until all is there that the host waits for.
//
// That is all the order there is on Metal. MLX orders two launches there if one takes what the other has made, by
// barriers in a command buffer and by fences between them (docs/mac.md); what a kernel writes into its inputs it does
// not see. Operations that touch no pool compute the same in any order, and MLX evaluates them when a launch needs
// them. So what counts as a launch here is what touches a pool: our kernels, in plain arithmetic, and operations of MLX
// that take a pool.
import { mlxc } from "../../ffi/lib.ts";
import { handleList, type Pointer } from "../../ffi/memory.ts";
import type { Device } from "../../src/device/device.ts";
import { LatentKernels } from "../../src/kernels/attention/latent-attention.ts";
import { PagedAttention } from "../../src/kernels/attention/paged-attention.ts";
import { RecurrenceKernels } from "../../src/kernels/recurrence/recurrence-kernels.ts";
import { array, evaluate, type MlxArray, vectorArrays, withVector } from "../../src/mlx/array.ts";
import type { KernelLaunch, KernelSource, MakeKernel } from "../../src/mlx/kernel.ts";
import { hold, Scope } from "../../src/mlx/scope.ts";
import { DataFlow, type DataNode, type FlowWatcher } from "./data-flow.ts";
import { plainGpu } from "./devices.ts";
import type { Constants, Numbers, PlainKernel } from "./plain-kernel.ts";
import { plainKernels } from "./plain-kernels.ts";
import { makeRandom, type Random } from "./random.ts";

type Launch = {
  name: string;
  /** Launches whose outputs it takes, directly or through operations that touch no pool. */
  behind: readonly Launch[];
  /** What it makes, unless nothing takes that. */
  node?: DataNode | undefined;
  /** Launched with it. */
  beside?: Launch | undefined;
  isLaunched: boolean;
  isDone: boolean;
  run(): void;
  /** Frees what it holds, run or not. */
  release(): void;
};

/** What calls of a device's `after` order: what takes the integers, behind what has made the array. */
export const orderings = [
  "a step behind the step before",
  "a step behind its copies",
  "copies behind the step before",
  "gathered blocks behind what is written to them",
] as const;

export type Ordering = (typeof orderings)[number];

/** What is taken out, to see that it is missed. */
export type Mutation =
  /** `after` returns the integers as they are. */
  | { after: Ordering }
  /** What this kernel writes into its inputs is there at any time after its launch could run, not with its output. */
  | { kernel: string; pool?: number };

export class RandomOrder implements FlowWatcher {
  readonly device: Device;
  readonly #flow: DataFlow;
  readonly #random: Random;
  /** How often the newest launch goes first. */
  readonly #haste: number;
  /** Whether those go first that the host waits for, so that others come as late as they can. */
  readonly #isLazy: boolean;
  readonly #mutation: Mutation | undefined;
  readonly #pools: DataNode[] = [];
  readonly #launches = new Map<DataNode, Launch>();
  /** Not run yet. */
  #pending: Launch[] = [];
  /** Launches that ran before one that was built earlier. */
  overtaken = 0;

  /** Watches MLX until `stop`: one at a time. */
  constructor(seed: number, mutation?: Mutation) {
    this.#random = makeRandom(seed);
    this.#haste = this.#random.below(3) / 3;
    this.#isLazy = this.#random.chance(0.5);
    this.#mutation = mutation;
    this.device = this.#makeDevice();
    this.#flow = new DataFlow(this);
  }

  stop(): void {
    for (const each of this.#pending) each.release();
    this.#pending = [];
    this.#flow.stop();
  }

  // ---- What MLX is asked for

  made(symbol: string, node: DataNode, taken: readonly DataNode[], handle: number): void {
    if (symbol.startsWith("mlx_vector") || !taken.some((each) => this.#pools.includes(each)))
      return;
    const vector = mlxc.mlx_vector_array_new_data(handleList([handle as Pointer]), 1);
    this.#add(symbol, node, taken, {
      run: () => mlxc.mlx_eval(vector),
      release: () => mlxc.mlx_vector_array_free(vector),
    });
  }

  launched(nodes: readonly DataNode[]): void {
    const mark = (launch: Launch) => {
      if (launch.isLaunched) return;
      launch.isLaunched = true;
      if (launch.beside) mark(launch.beside);
      launch.behind.forEach(mark);
    };
    this.#nearest(nodes).forEach(mark);
  }

  awaited(nodes: readonly DataNode[]): void {
    this.launched(nodes);
    const needed = new Set(this.#nearest(nodes));
    for (const launch of needed) for (const each of launch.behind) needed.add(each);
    while ([...needed].some(({ isDone }) => !isDone)) this.#runOne(needed);
  }

  synchronized(): void {
    while (this.#pending.some(({ isLaunched }) => isLaunched)) this.#runOne(new Set());
  }

  // ---- Launches

  #runOne(needed: ReadonlySet<Launch>): void {
    const ready = this.#pending.filter(
      ({ isLaunched, behind }) => isLaunched && behind.every(({ isDone }) => isDone),
    );
    const wanted = this.#isLazy ? ready.filter((each) => needed.has(each)) : [];
    const some = wanted.length > 0 ? wanted : ready;
    const isNewest = this.#random.chance(this.#haste);
    const launch = isNewest ? some.at(-1)! : some[this.#random.below(some.length)]!;
    if (launch !== this.#pending.find(({ isLaunched }) => isLaunched)) this.overtaken += 1;
    this.#pending.splice(this.#pending.indexOf(launch), 1);
    launch.isDone = true;
    launch.behind = [];
    try {
      launch.run();
    } finally {
      launch.release();
    }
    if (!launch.node) return;
    this.#launches.delete(launch.node);
    launch.node.isDone = true;
    launch.node.parents = [];
  }

  #add(
    name: string,
    node: DataNode | undefined,
    taken: readonly DataNode[],
    work: Pick<Launch, "run" | "release">,
  ): Launch {
    const behind = this.#nearest(taken);
    const launch: Launch = { name, behind, node, isLaunched: false, isDone: false, ...work };
    if (node) this.#launches.set(node, launch);
    this.#pending.push(launch);
    return launch;
  }

  /** The last launches that these were made by. */
  #nearest(nodes: readonly DataNode[]): Launch[] {
    const found = new Set<Launch>();
    const seen = new Set(nodes);
    for (const node of seen) {
      const launch = this.#launches.get(node);
      if (launch) found.add(launch);
      else if (!node.isDone) for (const parent of node.parents) seen.add(parent);
    }
    return [...found];
  }

  // ---- The device

  #makeDevice(): Device {
    const gpu = plainGpu();
    const make: MakeKernel = (_, source) => ({
      configure: (launch) => ({
        call: (...inputs) => [this.#call(source, launch, inputs)],
        free() {},
      }),
      free() {},
    });
    return {
      ...gpu,
      allocate: (shape, dtype) => {
        const pool = gpu.allocate(shape, dtype);
        this.#pools.push(this.#flow.node(pool));
        return pool;
      },
      attention: (shape, dtype) => new PagedAttention("metal", shape, dtype, make),
      latentAttention: (shape, dtype) => new LatentKernels("metal", shape, dtype, make),
      recurrence: () => new RecurrenceKernels("metal", make),
      // Some prompts of a few blocks are long.
      longPrompt: 48,
      after: (integers, before) => {
        const mutation = this.#mutation;
        const isOut =
          mutation && "after" in mutation && mutation.after === this.#orderingOf(integers, before);
        return isOut ? integers : gpu.after(integers, before);
      },
    };
  }

  /** Undefined where what it is to be behind has run already. */
  #orderingOf(integers: MlxArray, before: MlxArray): Ordering | undefined {
    const names = this.#nearest([this.#flow.node(before)]).map(({ name }) => name);
    if (names.length === 0) return undefined;
    // Only tokens are unsigned.
    if (integers.dtype === "uint32") {
      return names.includes("copy") ? "a step behind its copies" : "a step behind the step before";
    }
    return names.includes("prepare")
      ? "gathered blocks behind what is written to them"
      : "copies behind the step before";
  }

  /** A kernel's output, to be filled when it runs. Until then MLX sees an array of the host's. */
  #call(source: KernelSource, launch: KernelLaunch, inputs: readonly MlxArray[]): MlxArray {
    const name = source.name.replace("mlx_serve_", "");
    const kernel = plainKernels[name];
    if (!kernel) throw new Error(`there is no plain arithmetic for the kernel ${name}`);
    if (source.source.includes("const_cast") !== kernel.writes.length > 0) {
      throw new Error(`what the kernel ${name} writes into its inputs is not what is said here`);
    }
    const taken = inputs.map((each) => this.#flow.node(each));
    const [{ shape, dtype }] = launch.outputs as [KernelLaunch["outputs"][number]];
    const size = shape.reduce((count, dim) => count * dim, 1);
    // Read too early, it is no number.
    const blank = () =>
      dtype === "int32"
        ? array(new Int32Array(size).fill(-1), shape)
        : array(new Float32Array(size).fill(Number.NaN), shape);
    const output = blank();
    const node = this.#flow.node(output);
    node.parents = taken;
    const work = (into: MlxArray, ownPools: boolean) =>
      this.#work(kernel, source, launch, inputs, into, ownPools);
    if (!this.#isDetached(name, kernel, source, taken)) {
      this.#add(name, node, taken, work(output, true));
      return output;
    }
    // Its output comes from a copy of the pools, and what it writes to them is a launch that nothing waits for.
    const made = this.#add(name, node, taken, work(output, false));
    made.beside = this.#add(`writes of ${name}`, undefined, taken, work(blank(), true));
    return output;
  }

  #isDetached(
    name: string,
    { writes }: PlainKernel,
    { inputs }: KernelSource,
    taken: readonly DataNode[],
  ): boolean {
    const mutation = this.#mutation;
    if (!mutation || !("kernel" in mutation) || mutation.kernel !== name) return false;
    const { pool } = mutation;
    return (
      pool === undefined ||
      writes.some((written) => taken[inputs.indexOf(written)] === this.#pools[pool])
    );
  }

  #work(
    { run }: PlainKernel,
    { inputs: names }: KernelSource,
    { template = {} }: KernelLaunch,
    inputs: readonly MlxArray[],
    output: MlxArray,
    ownPools: boolean,
  ): Pick<Launch, "run" | "release"> {
    const kept = withVector([...inputs, output], (vector) => hold(vectorArrays(vector)));
    const into = kept.at(-1)!;
    return {
      run: () => {
        using _ = new Scope();
        evaluate(...kept);
        const numbers = names.map((name, i): [string, Numbers] => {
          const isInPlace = pools.includes(name) && ownPools;
          return [name, isInPlace ? memoryOf(kept[i]!) : (kept[i]!.data() as Numbers)];
        });
        run(Object.fromEntries(numbers), constantsOf(template), memoryOf(into));
      },
      release: () => {
        for (const each of kept) each.free();
      },
    };
  }
}

/** What kernels call them. */
const pools: readonly string[] = ["keys", "values", "pool"];

function memoryOf(x: MlxArray): Numbers {
  return x.dtype === "int32" ? new Int32Array(x.memory()) : new Float32Array(x.memory());
}

function constantsOf(template: NonNullable<KernelLaunch["template"]>): Constants {
  return Object.fromEntries(
    Object.entries(template).flatMap(([name, value]) =>
      typeof value === "string" ? [] : [[name, Number(value)]],
    ),
  );
}
