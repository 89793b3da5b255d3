// The served models: the one given at start and those of the cache. A model is loaded at the first request. It is
// unloaded after an idle time or, least recently used first, to make room for another; never while a request uses it.
import { sep } from "node:path";
import { type EngineClient, LoadCancelledError } from "../engine/client.ts";
import {
  type EngineOptions,
  type Load,
  type ModelInfo,
  type ModelPlan,
  readLoad,
} from "../engine/protocol.ts";
import type { ErrorAnswer } from "../error-answer.ts";
import { listRepos } from "../hub/cache.ts";
import { ModelNotFoundError } from "../hub/hub-error.ts";
import { fullName } from "../hub/popular-models.ts";
import { type Environment, hubCache } from "../hub/settings.ts";
import { type ModelSource, resolveModel } from "../hub/source.ts";
import { type BlockGauges, readGauges } from "../kv/blocks.ts";
import type { TextModel } from "../text/text-model.ts";
import { openLoadable } from "./load-check.ts";
import { type ModelNames, readModelNames } from "./model-names.ts";

/** A loaded model. */
export type ServedModel = { name: string; path: string; text: TextModel; info: ModelInfo };

/** A model in use by a request; it stays loaded until `end`. */
export type ModelUse = { model: ServedModel; end(): void };

export type ServedModelsOptions = {
  /** The model that is given at start. */
  main: ModelSource;
  /** Names of the main model (lists show the first; "default" always works) and patterns: see model-names.ts. */
  names: readonly string[];
  maxModels: number;
  /** Milliseconds that an idle model stays loaded; unlimited if undefined. */
  idleMs?: number | undefined;
  chatTemplate?: string | undefined;
  engineOptions: Partial<EngineOptions>;
  onUnload?: (model: string, path: string) => void;
  env?: Environment;
};

export type ListedModel = { name: string; maxLength: number | undefined; createdMs: number };

export type ModelState = {
  state: "loaded" | "loading" | "failed" | "not loaded";
  /** Number of requests that use the model. */
  uses: number;
};

/** A loaded model, and the use of its memory. */
export type LoadedModel = {
  info: ModelInfo;
  load: Load;
  blocks: BlockGauges;
  /** Counts of slots for recurrent states: held by sequences, cached as snapshots, free; `bytes`: size of a slot. */
  slots: (BlockGauges & { bytes: number }) | undefined;
  source: ModelSource;
  /** Unix time at which the model is unloaded if it stays idle; Infinity if never. */
  expiresMs: number;
};

/** Maximum delay that a timer supports. */
const MAX_TIMER_MS = 2 ** 31 - 1;
/** Milliseconds that batches pause after a model found no room. Clients retry earlier, after a second. */
const LACKING_MS = 5000;

export class NoRoomError extends Error {
  override name = "NoRoomError";
  readonly answer: ErrorAnswer = {
    status: 503,
    message: "All loaded models are busy and there is no room for another.",
    code: "no_room",
  };
}

/** Thrown if a model's files are invalid, or if it does not fit in memory. */
export class ModelLoadError extends Error {
  override name = "ModelLoadError";
  readonly answer: ErrorAnswer = { status: 500, message: "The model cannot be loaded." };
}

type Entry = {
  name: string;
  source: ModelSource;
  uses: number;
  lastUse: number;
  /** The current load; undefined if the model is not loaded or loading. */
  load: ModelLoad | undefined;
  /** Whether the latest load failed. */
  hasFailed: boolean;
  /** Milliseconds that the model stays loaded when idle, if a request has set this. */
  keepAliveMs: number | undefined;
  /** Time since which the model is idle. */
  idleSinceMs: number;
  /** Timer that unloads the model; set while the model is idle. */
  idleTimer: NodeJS.Timeout | undefined;
};

/** A load in progress or done, which sets `text` and `info`; `info` is unset while a restarted engine reloads. */
type ModelLoad = { done: Promise<void>; text: TextModel | undefined; info: ModelInfo | undefined };

export class ServedModels {
  readonly #engine: EngineClient;
  readonly #options: ServedModelsOptions;
  readonly #names: ModelNames;
  readonly #entries = new Map<string, Entry>();
  readonly #main: Entry;
  #clock = 0;
  #lackedRoomMs = Number.NEGATIVE_INFINITY;

  constructor(engine: EngineClient, options: ServedModelsOptions) {
    this.#engine = engine;
    this.#options = options;
    this.#names = readModelNames(options.names);
    const name = this.#names.own[0] ?? options.main.name;
    this.#main = this.#add(name, options.main);
  }

  /** The name of the model given at start. */
  get main(): string {
    return this.#main.name;
  }

  /** Whether the main model is being loaded; false once it has been unloaded. */
  get isLoading(): boolean {
    return this.#main.load !== undefined && !this.#main.load.info;
  }

  /** Whether the last load of the model given at start failed. */
  get hasFailed(): boolean {
    return this.#main.hasFailed;
  }

  /** Whether the model of a recent request found no room. */
  get lacksRoom(): boolean {
    return performance.now() - this.#lackedRoomMs < LACKING_MS;
  }

  /** Waits until the model is loaded, like `use`, but does not keep it loaded afterwards. */
  async get(name: string): Promise<ServedModel> {
    const { model, end } = await this.use(name);
    end();
    return model;
  }

  /**
   * Waits until the model is loaded; throws ModelNotFoundError or NoRoomError. `keepAliveMs`: milliseconds until the
   * model is unloaded when idle, Infinity for never; by default the server's setting.
   */
  async use(name: string, keepAliveMs?: number): Promise<ModelUse> {
    const entry = this.#find(name);
    entry.keepAliveMs = keepAliveMs ?? entry.keepAliveMs;
    return await this.#use(entry);
  }

  /** Returns the model's files; throws ModelNotFoundError. */
  sourceOf(name: string): ModelSource {
    return this.#find(name).source;
  }

  /** Returns the tokenizer and templates of a model; undefined if it is not loaded. */
  loadedText(name: string): TextModel | undefined {
    return this.#find(name).load?.text;
  }

  async #use(entry: Entry): Promise<ModelUse> {
    clearTimeout(entry.idleTimer);
    entry.uses += 1;
    let ended = false;
    const end = () => {
      if (!ended) this.#endUse(entry);
      ended = true;
    };
    try {
      return { model: await this.#loaded(entry), end };
    } catch (error) {
      end();
      throw error;
    }
  }

  #endUse(entry: Entry): void {
    entry.uses -= 1;
    entry.idleSinceMs = Date.now();
    const keepMs = this.#keepMs(entry);
    if (entry.uses > 0 || !entry.load || keepMs > MAX_TIMER_MS) return;
    // The timer never unloads a model in use, because every use clears it.
    entry.idleTimer = setTimeout(() => void this.#unload(entry).catch(() => {}), keepMs).unref();
  }

  #keepMs({ keepAliveMs }: Entry): number {
    return keepAliveMs ?? this.#options.idleMs ?? Number.POSITIVE_INFINITY;
  }

  /** Unloads a model; returns false if it was not loaded, and throws NoRoomError if it is in use. */
  async unload(name: string): Promise<boolean> {
    const entry = this.#find(name);
    if (!entry.load) return false;
    if (entry.uses > 0) throw new NoRoomError(`${entry.name} is in use`);
    await this.#unload(entry);
    return true;
  }

  /** Unloads all models below a folder, so that it can be removed. Throws NoRoomError if one is in use. */
  async release(folder: string): Promise<void> {
    const own = [...this.#entries.values()].filter((entry) =>
      entry.source.path.startsWith(folder + sep),
    );
    if (own.includes(this.#main)) throw new NoRoomError("the server was started with it");
    const checkUnused = () => {
      if (own.some(({ uses }) => uses > 0)) throw new NoRoomError("it is answering requests");
    };
    checkUnused();
    await Promise.all(own.filter(({ load }) => load).map((entry) => this.#unload(entry)));
    // Checks again, since a request may have begun to use a model during the unload.
    checkUnused();
    for (const { name } of own) this.#entries.delete(name);
  }

  /** Unloads a model. It counts as unloaded at once, so a request that arrives meanwhile loads it again. */
  async #unload(entry: Entry): Promise<void> {
    clearTimeout(entry.idleTimer);
    entry.load = undefined;
    entry.keepAliveMs = undefined;
    await this.#engine.unload(entry.name);
    this.#options.onUnload?.(entry.name, entry.source.path);
  }

  /** Reloads all models after the engine has died; until then, their `info` is undefined. */
  restore(): void {
    const lost = [...this.#entries.values()].filter(({ load }) => load);
    for (const { load } of lost) load!.info = undefined;
    setImmediate(() => {
      // Reloads only into a running engine: if the engine has died again, the next request restarts it.
      if (!this.#engine.alive) return;
      for (const entry of lost) {
        this.#use(entry).then(
          ({ end }) => end(),
          () => {},
        );
      }
    });
  }

  /** Returns a model's state; throws ModelNotFoundError. */
  stateOf(name: string): ModelState {
    const { load, hasFailed, uses } = this.#find(name);
    if (load) return { state: load.info ? "loaded" : "loading", uses };
    return { state: hasFailed ? "failed" : "not loaded", uses };
  }

  /** Estimates the memory of a model without loading it. */
  async plan(name: string): Promise<ModelPlan> {
    return await this.#engine.plan(this.#find(name).source.path, this.#options.engineOptions);
  }

  loaded(): LoadedModel[] {
    return [...this.#entries.values()].flatMap((entry): LoadedModel[] => {
      const { info } = entry.load ?? {};
      if (!info) return [];
      const idleSinceMs = entry.uses > 0 ? Date.now() : entry.idleSinceMs;
      const { slots } = info;
      return [
        {
          info,
          load: readLoad(info.load),
          blocks: readGauges(...info.gauges),
          slots: slots && { ...readGauges(slots.gauges), bytes: slots.bytes },
          source: entry.source,
          expiresMs: idleSinceMs + this.#keepMs(entry),
        },
      ];
    });
  }

  listed(name: string): ListedModel | undefined {
    const all = this.list();
    const find = (wanted: string | undefined) =>
      all.find((each) => each.name === (wanted === "default" ? this.main : wanted));
    const { env = process.env } = this.#options;
    return find(name) ?? find(fullName(name, env)) ?? find(this.#names.aliased(name));
  }

  /** Returns all models that clients may request, the one given at start first. */
  list(): ListedModel[] {
    const { env = process.env } = this.#options;
    const cached = listRepos(hubCache(env)).map(({ id, modifiedMs }) => ({ id, modifiedMs }));
    const names = [...new Set([this.#main.name, ...this.#names.own])];
    const maxLength = this.#main.load?.info?.maxLength;
    const others = cached.filter(({ id }) => !names.includes(id));
    return [
      ...names.map((name) => ({ name, createdMs: startedMs, maxLength })),
      ...others.map(({ id, modifiedMs }) => {
        const loaded = this.#entries.get(id)?.load?.info?.maxLength;
        return { name: id, createdMs: modifiedMs, maxLength: loaded };
      }),
    ];
  }

  #find(name: string): Entry {
    try {
      return this.#findServed(name);
    } catch (error) {
      const meant = this.#names.aliased(name);
      if (meant === undefined || !(error instanceof ModelNotFoundError)) throw error;
      return this.#findServed(meant);
    }
  }

  #findServed(name: string): Entry {
    const { main, env } = this.#options;
    if (["", "default", main.name, ...this.#names.own].includes(name)) return this.#main;
    const source = resolveModel(name, { allowPaths: false, ...(env && { env }) });
    return this.#entries.get(source.name) ?? this.#add(source.name, source);
  }

  #add(name: string, source: ModelSource): Entry {
    const entry: Entry = {
      name,
      source,
      uses: 0,
      lastUse: 0,
      load: undefined,
      hasFailed: false,
      keepAliveMs: undefined,
      idleSinceMs: Date.now(),
      idleTimer: undefined,
    };
    this.#entries.set(name, entry);
    return entry;
  }

  /** Waits until the model is loaded. The entry must be in use, so that the model is not unloaded meanwhile. */
  async #loaded(entry: Entry): Promise<ServedModel> {
    entry.lastUse = ++this.#clock;
    entry.load ??= this.#startLoad(entry);
    const { load, name, source } = entry;
    try {
      await load.done;
      // Waits for the load; after an engine restart, for the reload.
      load.info = await this.#engine.load(name, source.path, this.#options.engineOptions);
      entry.hasFailed = false;
      return { name, path: source.path, text: load.text!, info: load.info };
    } catch (error) {
      if (entry.load === load) entry.load = undefined;
      // A load that finds no room is not attempted, so it has not failed.
      if (!(error instanceof NoRoomError)) entry.hasFailed = true;
      throw error;
    }
  }

  #startLoad(entry: Entry): ModelLoad {
    const load: ModelLoad = { done: Promise.resolve(), text: undefined, info: undefined };
    load.done = this.#load(entry, load);
    return load;
  }

  async #load(entry: Entry, load: ModelLoad): Promise<void> {
    await this.#makeRoom(entry);
    const { source, name } = entry;
    const { chatTemplate, engineOptions } = this.#options;
    try {
      const options = entry === this.#main ? { chatTemplate } : {};
      load.text = await openLoadable(source.path, this.#engine, options);
      load.info = await this.#engine.load(name, source.path, engineOptions);
    } catch (error) {
      if (error instanceof LoadCancelledError) throw error;
      throw new ModelLoadError(error instanceof Error ? error.message : String(error));
    }
  }

  /** Unloads the least recently used of the idle models. */
  async #makeRoom(wanted: Entry): Promise<void> {
    const others = [...this.#entries.values()].filter((each) => each !== wanted && each.load);
    const excess = others.length + 1 - this.#options.maxModels;
    const idle = others
      .filter(({ uses }) => uses === 0)
      .sort((a, b) => a.lastUse - b.lastUse)
      .slice(0, Math.max(excess, 0));
    if (idle.length < excess) {
      this.#lackedRoomMs = performance.now();
      throw new NoRoomError("all models that fit are in use");
    }
    this.#lackedRoomMs = Number.NEGATIVE_INFINITY;
    await Promise.all(idle.map((entry) => this.#unload(entry)));
  }
}

const startedMs = Date.now();
