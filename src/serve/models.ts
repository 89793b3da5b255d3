// The models that are served: the one given at start, and those of the cache that clients name. A model is
// loaded when it is first requested. It is unloaded when it was idle for long enough, or when another one
// needs its place and it is the least recently used; never while a request uses it.
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

/** A model that a request is using; it stays loaded until the use has ended. */
export type ModelUse = { model: ServedModel; end(): void };

export type ServedModelsOptions = {
  /** The model given at start. */
  main: ModelSource;
  /** Names for it, the first of which it is listed under; "default" is always one. Or pattern=model, see model-names.ts. */
  names: readonly string[];
  maxModels: number;
  /** How long a model without requests stays loaded; forever by default. */
  idleMs?: number | undefined;
  chatTemplate?: string | undefined;
  engineOptions: Partial<EngineOptions>;
  onUnload?: (model: string, path: string) => void;
  env?: Environment;
};

export type ListedModel = { name: string; maxLength: number | undefined; createdMs: number };

/** How far a model is. */
export type ModelState = {
  state: "loaded" | "loading" | "failed" | "not loaded";
  /** Requests that use it. */
  uses: number;
};

/** As many models as may be loaded are in use. */
export type LoadedModel = {
  info: ModelInfo;
  load: Load;
  blocks: BlockGauges;
  /** Of recurrent layers: held by sequences, cached as snapshots, free; each takes so many bytes. */
  slots: (BlockGauges & { bytes: number }) | undefined;
  source: ModelSource;
  /** When it is unloaded if no request comes; Infinity is never. Unix time. */
  expiresMs: number;
};

/** The longest time of a timer. */
const MAX_TIMER_MS = 2 ** 31 - 1;
/** How long a model that found no room is remembered: clients are told to try again after a second. */
const LACKING_MS = 5000;

export class NoRoomError extends Error {
  override name = "NoRoomError";
  readonly answer: ErrorAnswer = {
    status: 503,
    message: "All loaded models are busy and there is no room for another.",
    code: "no_room",
  };
}

/** The model's files are invalid, or the engine has no memory for it. */
export class ModelLoadError extends Error {
  override name = "ModelLoadError";
  readonly answer: ErrorAnswer = { status: 500, message: "The model cannot be loaded." };
}

type Entry = {
  name: string;
  source: ModelSource;
  uses: number;
  lastUse: number;
  /** Undefined while it is neither loaded nor being loaded. */
  load: ModelLoad | undefined;
  /** Whether the last load failed. */
  hasFailed: boolean;
  /** How long it stays loaded without requests, if a request has said so. */
  keepAliveMs: number | undefined;
  /** Since when it has no uses. */
  idleSinceMs: number;
  /** Unloads it; set while it has no uses. */
  idleTimer: NodeJS.Timeout | undefined;
};

/** Undefined until it is loaded; `info` also while a restarted engine loads it again. */
type ModelLoad = {
  done: Promise<void>;
  text: TextModel | undefined;
  info: ModelInfo | undefined;
};

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

  /** Whether the model given at start is being loaded; not so once it was unloaded. */
  get isLoading(): boolean {
    return this.#main.load !== undefined && !this.#main.load.info;
  }

  /** Whether the last load of the model given at start failed. */
  get hasFailed(): boolean {
    return this.#main.hasFailed;
  }

  /** Whether a request has lately found no room for its model. */
  get lacksRoom(): boolean {
    return performance.now() - this.#lackedRoomMs < LACKING_MS;
  }

  /** The same as `use`, for callers that need it loaded now and not longer. */
  async get(name: string): Promise<ServedModel> {
    const { model, end } = await this.use(name);
    end();
    return model;
  }

  /**
   * The model of this name, loaded; throws ModelNotFoundError or NoRoomError. `keepAliveMs`: how long it stays
   * loaded without requests from now on, Infinity is forever; the server's choice by default.
   */
  async use(name: string, keepAliveMs?: number): Promise<ModelUse> {
    const entry = this.#find(name);
    entry.keepAliveMs = keepAliveMs ?? entry.keepAliveMs;
    return await this.#use(entry);
  }

  /** The files of the model of this name; throws ModelNotFoundError. */
  sourceOf(name: string): ModelSource {
    return this.#find(name).source;
  }

  /** The text part of the model of this name, if it is loaded. */
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
    // It unloads an unused model: each use clears it.
    entry.idleTimer = setTimeout(() => void this.#unload(entry).catch(() => {}), keepMs).unref();
  }

  #keepMs({ keepAliveMs }: Entry): number {
    return keepAliveMs ?? this.#options.idleMs ?? Number.POSITIVE_INFINITY;
  }

  /** Unloads a model; false where it was not loaded. Throws NoRoomError where it is in use. */
  async unload(name: string): Promise<boolean> {
    const entry = this.#find(name);
    if (!entry.load) return false;
    if (entry.uses > 0) throw new NoRoomError(`${entry.name} is in use`);
    await this.#unload(entry);
    return true;
  }

  /** Unloads what was loaded from below a folder, so that it can be removed. Throws NoRoomError if that is in use. */
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
    // Requests may have come meanwhile.
    checkUnused();
    for (const { name } of own) this.#entries.delete(name);
  }

  /** From the first moment it counts as not loaded: a request that arrives meanwhile loads it again. */
  async #unload(entry: Entry): Promise<void> {
    clearTimeout(entry.idleTimer);
    entry.load = undefined;
    entry.keepAliveMs = undefined;
    await this.#engine.unload(entry.name);
    this.#options.onUnload?.(entry.name, entry.source.path);
  }

  /** The engine has died: its models are loaded again, and until then their gauges are void. */
  restore(): void {
    const lost = [...this.#entries.values()].filter(({ load }) => load);
    for (const { load } of lost) load!.info = undefined;
    setImmediate(() => {
      // An engine that dies again and again is left alone until a request needs it.
      if (!this.#engine.alive) return;
      for (const entry of lost) {
        this.#use(entry).then(
          ({ end }) => end(),
          () => {},
        );
      }
    });
  }

  /** How far the model of this name is; throws ModelNotFoundError. */
  stateOf(name: string): ModelState {
    const { load, hasFailed, uses } = this.#find(name);
    if (load) return { state: load.info ? "loaded" : "loading", uses };
    return { state: hasFailed ? "failed" : "not loaded", uses };
  }

  /** What the model of this name would take, without loading it. */
  async plan(name: string): Promise<ModelPlan> {
    return await this.#engine.plan(this.#find(name).source.path, this.#options.engineOptions);
  }

  /** The loaded models and their load. */
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

  /** The model of this name as it is listed. */
  listed(name: string): ListedModel | undefined {
    const all = this.list();
    const find = (wanted: string | undefined) =>
      all.find((each) => each.name === (wanted === "default" ? this.main : wanted));
    const { env = process.env } = this.#options;
    return find(name) ?? find(fullName(name, env)) ?? find(this.#names.aliased(name));
  }

  /** Every model that a client may request, the one given at start first. */
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

  /** Only while the entry is in use, so that it is not unloaded meanwhile. */
  async #loaded(entry: Entry): Promise<ServedModel> {
    entry.lastUse = ++this.#clock;
    entry.load ??= this.#startLoad(entry);
    const { load, name, source } = entry;
    try {
      await load.done;
      // Waits for the model where the engine has been restarted since.
      load.info = await this.#engine.load(name, source.path, this.#options.engineOptions);
      entry.hasFailed = false;
      return { name, path: source.path, text: load.text!, info: load.info };
    } catch (error) {
      if (entry.load === load) entry.load = undefined;
      // Where there was no room, nothing was loaded.
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

  /** Evicts the least recently used of the models that no request uses. */
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
