// The loaded models, each with its engine.
import type { Device, FloatType } from "../device/device.ts";
import type { EngineOptions, ModelInfo, ModelPlan, ModelStats } from "../engine/protocol.ts";
import type { Matchers } from "../grammar/matchers.ts";
import { KvCache } from "../kv/kv-cache.ts";
import { liveArrays } from "../mlx/array.ts";
import { activeMemory } from "../mlx/memory.ts";
import { openCheckpoint } from "../model/checkpoint/checkpoint.ts";
import { fingerprintOf } from "../model/checkpoint/fingerprint.ts";
import type { Model } from "../model/contract/model.ts";
import { type LoadOptions, loadModel } from "../model/load.ts";
import { Runner } from "../model/run/runner.ts";
import { StateStore } from "../model/state/state-store.ts";
import type { Parts } from "./division.ts";
import { ModelEngine, type StepResult } from "./model-engine.ts";
import type { StepRunner } from "./pipeline.ts";
import { machineOf, needsOf, planModel } from "./plan.ts";
import { limitsOf, type MemoryPlan, planMemory } from "./planner.ts";
import type { RankLink } from "./rank-link.ts";

type Entry = { engine: ModelEngine; info: ModelInfo; plan: MemoryPlan; free(): void };

type LoadHooks = Pick<LoadOptions, "onProgress" | "onRead"> & {
  onWarmUp?: (done: number, total: number) => void;
};

type Asked = {
  name: string;
  path: string;
  dtype: FloatType;
  keepDequantized: boolean;
  options: EngineOptions;
  plan: MemoryPlan;
  hooks: LoadHooks;
};

/** A model's runner, and the memory it holds. */
type Opened = { runner: StepRunner; weightBytes: number; kvBytes: number; free(): void };

/** How often an idle engine polls for ranks that have come back, so that they load its models. */
const RANKS_POLL_MS = 500;

export class Models {
  readonly #openDevice: () => Device;
  /** Link to the ranks that compute the models; undefined if this Worker computes them. */
  readonly #ranks: RankLink | undefined;
  /** Called as soon as a step of any model has landed. */
  readonly #onStep: (result: StepResult) => void;
  #device: Device | undefined;
  readonly #entries = new Map<string, Entry>();
  /** Grammar matchers of all models, by the index (lane) of their grammar thread. */
  readonly matchers = new Map<number, Matchers>();
  /** Whether step reports list the tokens of each row. */
  isWatched = false;

  /** The device is opened at the first load: an incomplete libmlxc fails that load, not the start. */
  constructor(
    openDevice: () => Device,
    onStep: (result: StepResult) => void = () => {},
    ranks?: RankLink,
  ) {
    this.#openDevice = openDevice;
    this.#ranks = ranks;
    this.#onStep = onStep;
  }

  /** How long the loop may wait for a message while no model is busy: forever, unless ranks must be polled. */
  get idleMs(): number {
    return this.#ranks ? RANKS_POLL_MS : Number.POSITIVE_INFINITY;
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

  /** Loads a model unless it is already loaded. */
  load(name: string, path: string, options: EngineOptions, hooks: LoadHooks): ModelInfo {
    const make = () => this.#make(name, path, options, hooks);
    return this.#entries.getOrInsertComputed(name, make).info;
  }

  /** Opens a model's engine; on an error, frees everything allocated so far. */
  #make(name: string, path: string, options: EngineOptions, hooks: LoadHooks): Entry {
    this.#device ??= this.#openDevice();
    const device = this.#device;
    // Plan before allocating: MLX ends the process when it runs out of memory.
    this.#ranks?.awaitFormed(hooks);
    const { sketched, costs, needs, parts, keepDequantized } = needsOf(
      device,
      path,
      options,
      this.#ranks,
    );
    const plan = planMemory(machineOf(device, this.#ranks), needs, options);
    const { layout, maxLength, stepTokens } = plan;
    const { dtype, shape } = sketched;
    const { vocabulary } = shape;
    using made = new DisposableStack();
    made.defer(() => device.memory.clearCache());
    made.defer(() => this.#limit());
    const asked = { name, path, dtype, keepDequantized, options, plan, hooks };
    const opened =
      this.#ranks && parts ? this.#openOnRanks(asked, parts, this.#ranks) : this.#open(asked);
    const { runner, weightBytes, kvBytes } = made.adopt(opened, ({ free }) => free());
    const cache = new KvCache({ ...layout, explains: options.debug && options.prefixCaching });
    const engine = new ModelEngine({
      name,
      cache,
      runner,
      vocabulary,
      maxLength,
      originalLength: sketched.states.originalLength,
      lookback: lookbackOf(sketched),
      tokenBudget: stepTokens,
      besideTokens: device.besideTokens,
      stepMs: device.stepMs,
      options,
      matchers: (lane) => this.matchers.get(lane),
      isWatched: () => this.isWatched,
      onStep: this.#onStep,
    });
    const info: ModelInfo = {
      model: name,
      dtype,
      weightBytes,
      vocabulary,
      maxLength,
      ownLength: needs.maxPositions,
      lengthLimit: limitOf(maxLength, needs.maxPositions, options),
      parallel: parts?.parallel,
      blocks: Math.max(0, ...layout.groups.map((group) => group.blocks)),
      kvBytes,
      gauges: cache.gauges,
      slots: cache.slots && { bytes: costs.slotBytes, gauges: cache.slots.gauges },
      load: engine.load,
    };
    const kept = made.move();
    return { engine, info, plan, free: () => kept.dispose() };
  }

  #open({ path, dtype, keepDequantized, options, plan, hooks }: Asked): Opened {
    const device = this.#device!;
    using made = new DisposableStack();
    const owned = <T extends { free(): void }>(each: T): T => made.adopt(each, () => each.free());
    const { maxBatch } = options;
    const model = owned(loadModel(path, { device, dtype, keepDequantized, ...hooks }));
    this.#limit(plan);
    const store = owned(new StateStore(device, model.states, plan.layout, model.dtype));
    const { weightBytes } = model;
    const runner = owned(new Runner(device, model, store, undefined, { weightBytes }));
    if (options.warmUp) runner.warmUp(maxBatch, plan.maxLength, hooks.onWarmUp);
    const kept = made.move();
    return { runner, weightBytes, kvBytes: store.bytes, free: () => kept.dispose() };
  }

  #openOnRanks(asked: Asked, { parallel, layers }: Parts, ranks: RankLink): Opened {
    const { name, path, dtype, keepDequantized, options, plan, hooks } = asked;
    const { maxBatch } = options;
    const { layout, maxLength } = plan;
    const checkpoint = openCheckpoint(path);
    const fingerprint = fingerprintOf(checkpoint);
    checkpoint.close();
    const warmUp = options.warmUp ? { maxBatch, maxLength } : undefined;
    const part = { layout, parallel, layers, warmUp };
    const load = { model: name, path, dtype, keepDequantized, ...part };
    const runner = ranks.open({ load, fingerprint });
    try {
      runner.load(hooks);
    } catch (error) {
      runner.free();
      throw error;
    }
    return { runner, ...runner.held, free: () => runner.free() };
  }

  /** Sets MLX's memory limits from the plans of all loaded models and of the model being loaded, if any. */
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

  /** Plans a model's memory without loading it. Throws the errors of a load. */
  plan(path: string, options: EngineOptions): ModelPlan {
    this.#device ??= this.#openDevice();
    return planModel(this.#device, path, options, this.#ranks);
  }

  /** Unloads a model, if it is loaded; throws while it has requests. */
  unload(name: string): void {
    const entry = this.#entries.get(name);
    if (!entry) return;
    if (!entry.engine.scheduler.idle) throw new Error(`${name} is busy`);
    this.#entries.delete(name);
    entry.free();
  }

  stats(): ModelStats[] {
    const shared = { liveArrays: liveArrays(), activeBytes: activeMemory() };
    return Array.from(this, (engine) => ({ ...engine.stats(), ...shared }));
  }

  free(): void {
    const entries = [...this.#entries.values()];
    // Cleared before the models are freed: each `free` recomputes MLX's limits, which must not count these models.
    this.#entries.clear();
    for (const { free } of entries) free();
    this.#device?.free();
  }
}

/**
 * Returns the context length at which attention costs as much as the weights. Per token, a layer's weights take about
 * 12 * dims * dims multiplications in most models; full attention takes 2 * heads * headDim per previous token.
 */
function lookbackOf({
  shape: { dims },
  states: { kvs, latents, slots },
}: Pick<Model, "shape" | "states">): number {
  const seeing = kvs.filter(({ window }) => window === undefined);
  const widths =
    seeing.reduce((sum, { heads, headDim }) => sum + heads * headDim, 0) +
    latents.reduce((sum, { heads, latent, rotary }) => sum + heads * (latent + rotary / 2), 0);
  return (6 * dims * dims * (kvs.length + latents.length + slots.length)) / widths;
}

/** Returns what limits sequences to less than the model's own maximum length; undefined if nothing does. */
function limitOf(
  maxLength: number,
  ownLength: number,
  options: EngineOptions,
): ModelInfo["lengthLimit"] {
  if (maxLength >= ownLength) return undefined;
  return maxLength === options.maxLength ? "setting" : "memory";
}
