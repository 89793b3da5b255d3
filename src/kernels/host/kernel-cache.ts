// Compiles each named kernel when it is first launched, and configures each of its launches once. MLX copies a
// configuration into the graph when a launch is added, so an evicted configuration may be freed while steps that used
// it run.
import type { MlxArray } from "../../mlx/array.ts";
import type { KernelLaunch, Language, MakeKernel } from "../../mlx/kernel.ts";
import { Recent } from "./recent.ts";
import { kernelSource, type SourceOptions } from "./source.ts";

type Kernel = ReturnType<MakeKernel>;

/** Maximum launch configurations: prompt steps that are not padded need one per number of tokens. */
export const MOST_CONFIGURED = 512;

export class KernelCache {
  readonly #language: Language;
  readonly #makeKernel: MakeKernel;
  readonly #options: SourceOptions;
  readonly #kernels = new Map<string, Kernel>();
  readonly #configured = new Recent<string, ReturnType<Kernel["configure"]>>(MOST_CONFIGURED);

  constructor(language: Language, make: MakeKernel, options: SourceOptions = {}) {
    this.#language = language;
    this.#makeKernel = make;
    this.#options = options;
  }

  /** Launches a kernel with a single output, and returns that output. */
  run(
    name: string,
    body: string,
    inputs: Readonly<Record<string, MlxArray>>,
    output: string,
    launch: KernelLaunch,
    sharedMemory = 0,
  ): MlxArray {
    return this.runAll(name, body, inputs, [output], launch, sharedMemory)[0]!;
  }

  runAll(
    name: string,
    body: string,
    inputs: Readonly<Record<string, MlxArray>>,
    outputs: readonly string[],
    launch: KernelLaunch,
    sharedMemory = 0,
  ): MlxArray[] {
    const key = `${name} ${JSON.stringify(launch)}`;
    const configured = this.#configured.get(key, () => {
      const kernel =
        this.#kernels.get(name) ??
        this.#compile(name, body, Object.keys(inputs), outputs, sharedMemory);
      this.#kernels.set(name, kernel);
      return kernel.configure(launch);
    });
    return configured.call(...Object.values(inputs));
  }

  free(): void {
    this.#configured.free();
    for (const each of this.#kernels.values()) each.free();
  }

  #compile(
    name: string,
    body: string,
    inputs: readonly string[],
    outputs: readonly string[],
    sharedMemory: number,
  ): Kernel {
    return this.#makeKernel(this.#language, {
      name: `mlx_serve_${name}`,
      inputs,
      outputs,
      sharedMemory,
      ...kernelSource(body, this.#language, this.#options),
    });
  }
}

/** Caches of kernels with the same body, one cache per set of macros they are compiled with. */
export class KernelCaches {
  readonly #language: Language;
  readonly #make: MakeKernel;
  readonly #headers: ReadonlyMap<string, string>;
  readonly #caches = new Map<string, KernelCache>();

  constructor(language: Language, make: MakeKernel, headers: ReadonlyMap<string, string>) {
    this.#language = language;
    this.#make = make;
    this.#headers = headers;
  }

  with(defines: readonly string[]): KernelCache {
    const key = defines.join();
    const options = { headers: this.#headers, defines };
    const cache = this.#caches.get(key) ?? new KernelCache(this.#language, this.#make, options);
    this.#caches.set(key, cache);
    return cache;
  }

  /** Returns the cache of kernels for clusters of `groups` CTAs; 1 means no clusters. */
  clustered(groups: number): KernelCache {
    return this.with(groups > 1 ? [`CLUSTER ${groups}`] : []);
  }

  free(): void {
    for (const each of this.#caches.values()) each.free();
  }
}
