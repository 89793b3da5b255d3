// The models that are loaded, each with its engine.
import type { Device } from "../device/device.ts";
import type { EngineOptions, ModelInfo, ModelPlan, ModelStats } from "../engine/protocol.ts";
import type { Matchers } from "../grammar/matchers.ts";
import { KvCache } from "../kv/kv-cache.ts";
import { liveArrays } from "../mlx/array.ts";
import { activeMemory } from "../mlx/memory.ts";
import { type LoadOptions, loadModel } from "../model/load.ts";
import type { Model } from "../model/model.ts";
import { Runner } from "../model/runner.ts";
import { StateStore } from "../model/state-store.ts";
import { ModelEngine } from "./model-engine.ts";
import { machineOf, needsOf, planModel } from "./plan.ts";
import { limitsOf, type MemoryPlan, planMemory } from "./planner.ts";

type Entry = { engine: ModelEngine; info: ModelInfo; plan: MemoryPlan; free(): void };

type LoadHooks = Pick<LoadOptions, "onProgress" | "onRead"> & {
  onWarmUp?: (done: number, total: number) => void;
};

export class Models {
  readonly #openDevice: () => Device;
  #device: Device | undefined;
  readonly #entries = new Map<string, Entry>();
  /** Follow the grammars of all of them, by lane. */
  readonly matchers = new Map<number, Matchers>();

  /** The device is opened when a model is first loaded: a libmlxc that lacks what it needs is an error then. */
  constructor(openDevice: () => Device) {
    this.#openDevice = openDevice;
  }

  get busy(): boolean {
    return this.#entries.values().some(({ engine }) => !engine.scheduler.idle);
  }

  get(name: string): ModelEngine | undefined {
    return this.#entries.get(name)?.engine;
  }

  *[Symbol.iterator](): Iterator<ModelEngine> {
    for (const { engine } of this.#entries.values()) yield engine;
  }

  /** Loads a model, unless it is there. */
  load(name: string, path: string, options: EngineOptions, hooks: LoadHooks): ModelInfo {
    const entry = this.#entries.get(name) ?? this.#make(name, path, options, hooks);
    this.#entries.set(name, entry);
    return entry.info;
  }

  /** What was made before something fails is freed again. */
  #make(name: string, path: string, options: EngineOptions, hooks: LoadHooks): Entry {
    this.#device ??= this.#openDevice();
    const device = this.#device;
    // Before anything is taken: MLX would end the process where there is no memory.
    const { costs, needs } = needsOf(device, path, options);
    const plan = planMemory(machineOf(device), needs, options);
    using made = new DisposableStack();
    made.defer(() => device.memory.clearCache());
    made.defer(() => this.#limit());
    const owned = <T extends { free(): void }>(each: T): T => made.adopt(each, () => each.free());
    const { dtype, keepUnpacked: keepDequantized, maxBatch } = options;
    const model = owned(loadModel(path, { device, dtype, keepDequantized, ...hooks }));
    const { vocabulary } = model.shape;
    const { layout, maxLength, stepTokens } = plan;
    this.#limit(plan);
    const store = owned(new StateStore(device, model.states, layout, model.dtype));
    const cache = new KvCache({ ...layout, explains: options.debug && options.prefixCaching });
    const runner = owned(new Runner(device, model, store));
    const engine = new ModelEngine({
      name,
      cache,
      runner,
      vocabulary,
      maxLength,
      lookback: lookbackOf(model),
      tokenBudget: stepTokens,
      stepMs: device.stepMs,
      options,
      matchers: (lane) => this.matchers.get(lane),
    });
    const info: ModelInfo = {
      model: name,
      dtype: model.dtype,
      weightBytes: model.weightBytes,
      vocabulary,
      maxLength,
      ownLength: needs.maxPositions,
      lengthLimit: limitOf(maxLength, needs.maxPositions, options),
      blocks: Math.max(0, ...layout.groups.map((group) => group.blocks)),
      kvBytes: store.bytes,
      gauges: cache.gauges,
      slots: cache.slots && { bytes: costs.slotBytes, gauges: cache.slots.gauges },
      load: engine.load,
    };
    if (options.warmUp) runner.warmUp(maxBatch, maxLength, hooks.onWarmUp);
    const kept = made.move();
    return { engine, info, plan, free: () => kept.dispose() };
  }

  /** MLX keeps to what is planned: for the models that are loaded, and for one that is about to be. */
  #limit(loading?: MemoryPlan): void {
    const device = this.#device!;
    const plans = [
      ...this.#entries.values().map(({ plan }) => plan),
      ...(loading ? [loading] : []),
    ];
    const { wiredBytes, cacheBytes } = limitsOf(machineOf(device), plans);
    device.memory.setWiredLimit(wiredBytes);
    device.memory.setCacheLimit(cacheBytes);
  }

  /** What a model would take, without loading it. Throws what a load would. */
  plan(path: string, options: EngineOptions): ModelPlan {
    this.#device ??= this.#openDevice();
    return planModel(this.#device, path, options);
  }

  /** A model that is not there is unloaded already; one that has requests is not unloaded. */
  unload(name: string): void {
    const entry = this.#entries.get(name);
    if (!entry) return;
    if (!entry.engine.scheduler.idle) throw new Error(`${name} is at work`);
    this.#entries.delete(name);
    entry.free();
  }

  stats(): ModelStats[] {
    const shared = { liveArrays: liveArrays(), activeBytes: activeMemory() };
    return Array.from(this, (engine) => ({ ...engine.stats(), ...shared }));
  }

  free(): void {
    const entries = [...this.#entries.values()];
    // They give back the limits that are left without them.
    this.#entries.clear();
    for (const { free } of entries) free();
    this.#device?.free();
  }
}

/**
 * A layer multiplies a token with its weights, some 12 times dims * dims in most models. One that sees all tokens
 * multiplies it twice heads * headDim with each token before it.
 */
function lookbackOf({ shape: { dims }, states: { kvs, latents, slots } }: Model): number {
  const seeing = kvs.filter(({ window }) => window === undefined);
  const widths =
    seeing.reduce((sum, { heads, headDim }) => sum + heads * headDim, 0) +
    latents.reduce((sum, { heads, latent, rotary }) => sum + heads * (latent + rotary / 2), 0);
  return (6 * dims * dims * (kvs.length + latents.length + slots.length)) / widths;
}

/** What made the longest sequence shorter than the model's own. */
function limitOf(
  maxLength: number,
  ownLength: number,
  options: EngineOptions,
): ModelInfo["lengthLimit"] {
  if (maxLength >= ownLength) return undefined;
  return maxLength === options.maxLength ? "setting" : "memory";
}
