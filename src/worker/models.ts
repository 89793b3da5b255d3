// The models that are loaded, each with its engine.
import type { Device } from "../device/device.ts";
import type { EngineOptions, ModelInfo, ModelStats } from "../engine/protocol.ts";
import type { Matchers } from "../grammar/matchers.ts";
import { BLOCK_TOKENS, BlockPool } from "../kv/blocks.ts";
import { liveArrays } from "../mlx/array.ts";
import { activeMemory, clearCache, memoryLimit } from "../mlx/memory.ts";
import { type LoadedModel, type LoadOptions, loadModel } from "../model/load.ts";
import type { ModelShape } from "../model/model.ts";
import { blockBytes, PagedKvStore } from "../model/paged-kv-store.ts";
import { Runner } from "../model/runner.ts";
import { ModelEngine } from "./model-engine.ts";

type Entry = { engine: ModelEngine; info: ModelInfo; free(): void };

type LoadHooks = Pick<LoadOptions, "onProgress" | "onRead">;

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
    using made = new DisposableStack();
    made.defer(clearCache);
    const owned = <T extends { free(): void }>(each: T): T => made.adopt(each, () => each.free());
    const { dtype, keepUnpacked: keepDequantized, maxBatch } = options;
    const model = owned(loadModel(path, { device, dtype, keepDequantized, ...hooks }));
    const { vocabulary, maxPositions } = model.shape;
    const bytesEach = blockBytes(model.shape, device.kvType(model.dtype));
    const fitting = (options.kvBytes ?? device.kvBytes()) / bytesEach;
    const blocks = options.blocks ?? blocksFor(model, options, fitting);
    checkMemory(blocks, bytesEach);
    const store = owned(new PagedKvStore(device, model.shape, blocks, model.dtype));
    const pool = new BlockPool(blocks);
    const runner = owned(new Runner(device, model, store));
    const maxLength = Math.min(
      maxPositions,
      options.maxLength ?? maxPositions,
      blocks * BLOCK_TOKENS,
    );
    const engine = new ModelEngine({
      name,
      pool,
      runner,
      vocabulary,
      maxLength,
      lookback: lookbackOf(model.shape),
      tokenBudget: device.tokenBudget,
      options,
      matchers: (lane) => this.matchers.get(lane),
    });
    const info: ModelInfo = {
      model: name,
      dtype: model.dtype,
      weightBytes: model.weightBytes,
      vocabulary,
      maxLength,
      blocks,
      kvBytes: store.bytes,
      gauges: pool.gauges,
      load: engine.load,
    };
    if (options.warmUp) runner.warmUp(maxBatch, maxLength);
    const kept = made.move();
    return { engine, info, free: () => kept.dispose() };
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
    for (const { free } of this.#entries.values()) free();
    this.#entries.clear();
    this.#device?.free();
  }
}

/** MLX would end the process where there is no memory for the blocks. */
function checkMemory(blocks: number, bytesEach: number): void {
  const [wanted, most] = [blocks * bytesEach, memoryLimit() - activeMemory()];
  if (wanted <= most) return;
  const gib = (bytes: number) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;
  throw new Error(
    `${blocks} KV blocks take ${gib(wanted)}, and there are ${gib(most)} left: ` +
      "set a smaller --block-pool-size or --kv-memory",
  );
}

/** As many as the memory for them holds, and no more than a full batch could use. */
function blocksFor(model: LoadedModel, options: EngineOptions, fitting: number): number {
  const { maxPositions } = model.shape;
  const longest = Math.min(maxPositions, options.maxLength ?? maxPositions);
  const most = options.maxBatch * Math.ceil(longest / BLOCK_TOKENS);
  return Math.max(1, Math.min(most, Math.floor(fitting)));
}

/**
 * A layer multiplies a token with its weights, some 12 times dims * dims in most models, and twice heads *
 * headDim with each token before it.
 */
function lookbackOf({ dims, heads, headDim }: ModelShape): number {
  return (6 * dims * dims) / (heads * headDim);
}
