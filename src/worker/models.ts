// The models that are loaded, each with its engine.
import { hasOwn } from "../../ffi/lib.ts";
import type { Backend } from "../../ffi/native.ts";
import type { EngineOptions, ModelInfo, ModelStats } from "../engine/protocol.ts";
import type { Matchers } from "../grammar/matchers.ts";
import { BLOCK_TOKENS, BlockPool } from "../kv/blocks.ts";
import { liveArrays } from "../mlx/array.ts";
import { bytesOf } from "../mlx/dtype.ts";
import { activeMemory, clearCache, memoryLimit } from "../mlx/memory.ts";
import { DeviceRunner } from "../model/device-runner.ts";
import { kvType, makeKvStore } from "../model/kv-store.ts";
import { type LoadedModel, type LoadOptions, loadModel } from "../model/load.ts";
import type { ModelShape } from "../model/model.ts";
import { Runner } from "../model/runner.ts";
import { ModelEngine } from "./model-engine.ts";

type Entry = { engine: ModelEngine; info: ModelInfo; free(): void };

type LoadHooks = Pick<LoadOptions, "onProgress" | "onRead">;

export class Models {
  readonly #backend: Backend;
  readonly #entries = new Map<string, Entry>();
  /** Who follows the grammars of all of them. */
  matchers: Matchers | undefined;

  constructor(backend: Backend) {
    this.#backend = backend;
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

  #make(name: string, path: string, options: EngineOptions, hooks: LoadHooks): Entry {
    if (this.#backend === "cpu" && !hasOwn) {
      throw new Error("this libmlxc has no operations for a CPU: set-up's has");
    }
    const { dtype, keepUnpacked } = options;
    const model = loadModel(path, { backend: this.#backend, dtype, keepUnpacked, ...hooks });
    const kvBytes = options.kvBytes ?? suitableKvBytes(this.#backend);
    const blockBytes = blockBytesOf(model, this.#backend);
    const blocks = options.blocks ?? blocksFor(model, options, kvBytes / blockBytes);
    checkMemory(model, blocks, blockBytes);
    const store = makeKvStore(model.shape, blocks, model.dtype, this.#backend);
    const pool = new BlockPool(blocks);
    const runner =
      this.#backend === "cpu" ? new Runner(model, store) : new DeviceRunner(model, store);
    const { vocabulary, maxPositions } = model.shape;
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
      options: { ...options, tokenBudget: options.tokenBudget ?? suitableTokens(this.#backend) },
      matchers: () => this.matchers,
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
    if (options.warmUp) runner.warmUp(options.maxBatch, maxLength);
    const free = () => {
      runner.free();
      store.free();
      model.free();
      clearCache();
    };
    return { engine, info, free };
  }

  /** A model that is not there is unloaded already; one at work is not unloaded. */
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
  }
}

function blockBytesOf({ shape, dtype }: LoadedModel, backend: Backend): number {
  const { layers, kvHeads, headDim } = shape;
  return 2 * layers * kvHeads * BLOCK_TOKENS * headDim * bytesOf(kvType(dtype, backend));
}

/** The process would end where there is no memory for the blocks; so the model is freed, and it is said. */
function checkMemory(model: LoadedModel, blocks: number, blockBytes: number): void {
  const [wanted, most] = [blocks * blockBytes, memoryLimit() - activeMemory()];
  if (wanted <= most) return;
  model.free();
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

/** The CPU shares its memory with everything else; of a GPU's, half of what the weights have left. */
function suitableKvBytes(backend: Backend): number {
  return backend === "cpu" ? 2 ** 30 : Math.max(2 ** 28, (memoryLimit() - activeMemory()) / 2);
}

/**
 * A layer multiplies a token with its weights, some 12 times dims * dims in most models, and twice heads *
 * headDim with each token before it.
 */
function lookbackOf({ dims, heads, headDim }: ModelShape): number {
  return (6 * dims * dims) / (heads * headDim);
}

/** Of a step, where they are not few: such a GPU is hardly busy with those. */
function suitableTokens(backend: Backend): number | undefined {
  return backend === "cuda" ? 2048 : undefined;
}
