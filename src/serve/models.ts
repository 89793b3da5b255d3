// The models that are served: the one given at start, and those of the cache that clients ask for. Each
// is loaded when it is first asked for; when there are too many, the one that was longest without work
// makes room.
import type { EngineClient } from "../engine/client.ts";
import { type EngineOptions, type Load, type ModelInfo, readLoad } from "../engine/protocol.ts";
import { listRepos } from "../hub/cache.ts";
import { type Environment, hubCache } from "../hub/settings.ts";
import { type ModelSource, resolveModel } from "../hub/source.ts";
import { type BlockGauges, readGauges } from "../kv/blocks.ts";
import { openTextModel, type TextModel } from "../text/text-model.ts";

/** A model that can be asked. */
export type ServedModel = { name: string; path: string; text: TextModel; info: ModelInfo };

/** A model that a request is using; it stays loaded until the use has ended. */
export type ModelUse = { model: ServedModel; end(): void };

export type ServedModelsOptions = {
  /** The model given at start. */
  main: ModelSource;
  /** Names for it, the first of which it is listed under; "default" is always one. */
  names: readonly string[];
  maxModels: number;
  chatTemplate?: string | undefined;
  engineOptions: Partial<EngineOptions>;
  env?: Environment;
};

/** All the places for models are taken by models at work. */
export class NoRoomError extends Error {
  override name = "NoRoomError";
}

/** Its files are not what they should be, or the engine has no memory for it. */
export class ModelLoadError extends Error {
  override name = "ModelLoadError";
}

type Entry = {
  name: string;
  source: ModelSource;
  uses: number;
  lastUse: number;
  /** Settles when it can be asked; undefined while it is not loaded. */
  loading: Promise<void> | undefined;
  text: TextModel | undefined;
  info: ModelInfo | undefined;
  /** It could not be loaded when that was last tried. */
  hasFailed: boolean;
};

export class ServedModels {
  readonly #engine: EngineClient;
  readonly #options: ServedModelsOptions;
  readonly #entries = new Map<string, Entry>();
  readonly #main: Entry;
  #clock = 0;

  constructor(engine: EngineClient, options: ServedModelsOptions) {
    this.#engine = engine;
    this.#options = options;
    const name = options.names[0] ?? options.main.name;
    this.#main = this.#add(name, options.main);
  }

  /** The name of the model given at start. */
  get main(): string {
    return this.#main.name;
  }

  /** Whether the model given at start is on its way; one that was dropped is not. */
  get isLoading(): boolean {
    return this.#main.loading !== undefined && !this.#main.info;
  }

  /** Whether the model given at start could not be loaded when that was last tried. */
  get hasFailed(): boolean {
    return this.#main.hasFailed;
  }

  /** The same as `use`, for those who need it loaded now and not longer. */
  async get(name: string): Promise<ServedModel> {
    const { model, end } = await this.use(name);
    end();
    return model;
  }

  /** The model that goes by this name, loaded; throws ModelNotFoundError or NoRoomError. */
  async use(name: string): Promise<ModelUse> {
    const entry = this.#find(name);
    entry.uses += 1;
    let ended = false;
    const end = () => {
      if (!ended) entry.uses -= 1;
      ended = true;
    };
    try {
      return { model: await this.#loaded(entry), end };
    } catch (error) {
      end();
      throw error;
    }
  }

  /** Lets go of a model; whether it was loaded. */
  async unload(name: string): Promise<boolean> {
    const entry = this.#find(name);
    if (!entry.info) return false;
    if (entry.uses > 0) throw new NoRoomError(`${entry.name} is at work`);
    await this.#engine.unload(entry.name);
    this.forget(entry.name);
    return true;
  }

  /** The engine has dropped it. */
  forget(name: string): void {
    const entry = this.#entries.get(name);
    if (entry) Object.assign(entry, { loading: undefined, info: undefined, text: undefined });
  }

  /** The engine has died: what its memory tells is void until another has loaded its models again. */
  restore(): void {
    const lost = [...this.#entries.values()].filter(({ info, loading }) => info || loading);
    for (const entry of lost) entry.info = undefined;
    setImmediate(() => {
      // An engine that dies again and again is left alone until somebody asks.
      if (!this.#engine.alive) return;
      for (const entry of lost) this.#loaded(entry).catch(() => this.forget(entry.name));
    });
  }

  /** Those that are loaded, with what they are doing. */
  loaded(): { info: ModelInfo; load: Load; blocks: BlockGauges }[] {
    return [...this.#entries.values()].flatMap(({ info }) => {
      return info ? [{ info, load: readLoad(info.load), blocks: readGauges(info.gauges) }] : [];
    });
  }

  /** Whatever a client may ask for: the one given at start first. */
  list(): { name: string; maxLength: number | undefined; createdMs: number }[] {
    const { env = process.env } = this.#options;
    const cached = listRepos(hubCache(env)).map(({ id, modifiedMs }) => ({ id, modifiedMs }));
    const names = [...new Set([this.#main.name, ...this.#options.names])];
    const maxLength = this.#main.info?.maxLength;
    const others = cached.filter(({ id }) => !names.includes(id));
    return [
      ...names.map((name) => ({ name, createdMs: startedMs, maxLength })),
      ...others.map(({ id, modifiedMs }) => {
        const loaded = this.#entries.get(id)?.info?.maxLength;
        return { name: id, createdMs: modifiedMs, maxLength: loaded };
      }),
    ];
  }

  #find(name: string): Entry {
    const { names, main, env } = this.#options;
    if (["", "default", main.name, ...names].includes(name)) return this.#main;
    const source = resolveModel(name, { allowPaths: false, ...(env && { env }) });
    return this.#entries.get(name) ?? this.#add(name, source);
  }

  #add(name: string, source: ModelSource): Entry {
    const entry: Entry = {
      name,
      source,
      uses: 0,
      lastUse: 0,
      loading: undefined,
      text: undefined,
      info: undefined,
      hasFailed: false,
    };
    this.#entries.set(name, entry);
    return entry;
  }

  async #loaded(entry: Entry): Promise<ServedModel> {
    entry.lastUse = ++this.#clock;
    try {
      entry.loading ??= this.#load(entry).catch((error) => {
        this.forget(entry.name);
        throw error;
      });
      await entry.loading;
      const { name, source, text } = entry;
      // Where the engine has been started again since, this waits for the model to be back.
      entry.info = await this.#engine.load(name, source.path, this.#options.engineOptions);
      entry.hasFailed = false;
      return { name, path: source.path, text: text!, info: entry.info };
    } catch (error) {
      // Where there was no room, nothing was tried.
      if (!(error instanceof NoRoomError)) entry.hasFailed = true;
      throw error;
    }
  }

  async #load(entry: Entry): Promise<void> {
    await this.#makeRoom(entry);
    const { source, name } = entry;
    const { chatTemplate, engineOptions } = this.#options;
    try {
      entry.text = openTextModel(source.path, entry === this.#main ? { chatTemplate } : {});
      entry.info = await this.#engine.load(name, source.path, engineOptions);
    } catch (error) {
      throw new ModelLoadError(error instanceof Error ? error.message : String(error));
    }
  }

  async #makeRoom(wanted: Entry): Promise<void> {
    const others = [...this.#entries.values()].filter((each) => each !== wanted && each.loading);
    const excess = others.length + 1 - this.#options.maxModels;
    const idle = others
      .filter(({ uses }) => uses === 0)
      .sort((a, b) => a.lastUse - b.lastUse)
      .slice(0, Math.max(excess, 0));
    if (idle.length < excess) throw new NoRoomError("all models that fit are at work");
    for (const { name } of idle) await this.unload(name);
  }
}

const startedMs = Date.now();
