import { afterAll, beforeAll, describe, expect, spyOn, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { findLibrary } from "../../ffi/native.ts";
import { EngineClient, EngineError } from "../../src/engine/client.ts";
import type { ModelInfo } from "../../src/engine/protocol.ts";
import { ModelNotFoundError } from "../../src/hub/hub-error.ts";
import {
  ModelLoadError,
  NoRoomError,
  ServedModels,
  type ServedModelsOptions,
} from "../../src/serve/models.ts";
import { writeChatModel } from "../support/chat-model.ts";

const root = mkdtempSync(join(tmpdir(), "served-models-"));
const commit = "0123456789abcdef0123456789abcdef01234567";
const env = { HF_HUB_CACHE: join(root, "hub") };
const main = { kind: "folder", path: join(root, "main"), name: "main-folder" } as const;
let engine: EngineClient;

function cacheModel(name: string, org = "org"): string {
  const folder = join(root, "hub", `models--${org}--${name}`);
  const snapshot = join(folder, "snapshots", commit);
  mkdirSync(join(folder, "refs"), { recursive: true });
  writeFileSync(join(folder, "refs", "main"), commit);
  writeChatModel(snapshot);
  return snapshot;
}

beforeAll(async () => {
  writeChatModel(main.path);
  for (const name of ["a", "b"]) cacheModel(name);
  writeFileSync(join(cacheModel("broken"), "model.safetensors"), "nothing");
  engine = await EngineClient.start({ library: findLibrary(), device: "cpu", trace: false });
});
afterAll(async () => {
  await engine.stop();
  rmSync(root, { recursive: true });
});

/** Each with an engine without models. */
async function serve(
  maxModels: number,
  options: Partial<ServedModelsOptions> = {},
): Promise<ServedModels> {
  for (const { model } of await engine.stats()) await engine.unload(model);
  const engineOptions = { maxBatch: 2, blocks: 8 };
  return new ServedModels(engine, { main, names: [], maxModels, engineOptions, env, ...options });
}

/** How many tokens a request to this model gets. */
async function ask(models: ServedModels, name: string): Promise<number> {
  const { model, end } = await models.use(name);
  const request = { prompt: Uint32Array.of(1, 2), maxTokens: 3, sampling: { temperature: 0 } };
  const events = engine.submit(model.name, request);
  const tokens = (await Array.fromAsync(events)).length;
  end();
  return tokens;
}

const loaded = (models: ServedModels) => models.loaded().map(({ info }) => info.model);

describe("the models that are served", () => {
  test("are the one given at start, under all its names, and those of the cache", async () => {
    const models = await serve(2, { names: ["mine", "other"] });
    expect(models.main).toBe("mine");
    for (const name of ["", "default", "mine", "other", "main-folder"]) {
      const use = await models.use(name);
      expect(use.model.name).toBe("mine");
      use.end();
    }
    expect(models.list().map(({ name, maxLength }) => [name, maxLength])).toEqual([
      ["mine", 256],
      ["other", 256],
      ["org/a", undefined],
      ["org/b", undefined],
      ["org/broken", undefined],
    ]);
  });

  test("are loaded by the first request, once for several", async () => {
    const models = await serve(2);
    const [first, second] = await Promise.all([models.use("org/a"), models.use("org/a")]);
    expect(first.model).toEqual(second.model);
    expect(loaded(models)).toEqual(["org/a"]);
    first.end();
    second.end();
  });

  test("are loaded once by the short name of a repo and by its own", async () => {
    cacheModel("Qwen3-0.6B-4bit", "mlx-community");
    const models = await serve(2);
    const repo = "mlx-community/Qwen3-0.6B-4bit";
    for (const name of ["qwen3:0.6b", repo]) {
      const use = await models.use(name);
      expect(use.model.name).toBe(repo);
      use.end();
      expect(models.listed(name)?.name).toBe(repo);
    }
    expect(loaded(models)).toEqual([repo]);
    expect(await models.unload("qwen3:0.6b")).toBe(true);
    await models.release(join(root, "hub", "models--mlx-community--Qwen3-0.6B-4bit"));
    rmSync(join(root, "hub", "models--mlx-community--Qwen3-0.6B-4bit"), { recursive: true });
  });

  test("are evicted for others, the least recently used first", async () => {
    const models = await serve(2);
    for (const name of ["default", "org/a", "default", "org/b"]) (await models.use(name)).end();
    expect(loaded(models)).toEqual(["main-folder", "org/b"]);
    expect((await engine.stats()).map(({ model }) => model).sort()).toEqual([
      "main-folder",
      "org/b",
    ]);
  });

  test("are not evicted while they are in use; where all are, another is refused", async () => {
    const models = await serve(1);
    const use = await models.use("org/a");
    await expect(models.use("org/b")).rejects.toThrow(NoRoomError);
    await expect(models.unload("org/a")).rejects.toThrow(NoRoomError);
    await expect(models.use("default")).rejects.toThrow(NoRoomError);
    expect(models.hasFailed).toBe(false);
    use.end();
    use.end();
    (await models.use("org/b")).end();
    expect(loaded(models)).toEqual(["org/b"]);
  });

  test("are evicted in their order, except those in use", async () => {
    const models = await serve(2);
    const use = await models.use("org/a");
    (await models.use("default")).end();
    (await models.use("org/b")).end();
    expect(loaded(models)).toEqual(["org/a", "org/b"]);
    use.end();
  });

  test("can be unloaded, and are loaded again by a request", async () => {
    const models = await serve(2);
    (await models.use("default")).end();
    expect(await models.unload("default")).toBe(true);
    expect(await models.unload("default")).toBe(false);
    expect(loaded(models)).toEqual([]);
    (await models.use("default")).end();
    expect(loaded(models)).toEqual(["main-folder"]);
  });

  test("are loaded again after the engine has died", async () => {
    const models = await serve(2);
    (await models.use("org/a")).end();
    await engine.kill();
    expect(await ask(models, "org/a")).toBe(3);
  });

  test("are loaded again where the engine has died while it loaded them", async () => {
    const models = await serve(2);
    const { promise, reject } = Promise.withResolvers<ModelInfo>();
    const load = spyOn(engine, "load").mockReturnValueOnce(promise);
    const asked = models.get("default");
    while (load.mock.calls.length === 0) await Bun.sleep(1);
    load.mockRestore();
    reject(new EngineError("the engine has ended"));
    models.restore();
    await expect(asked).rejects.toThrow(ModelLoadError);
    while (loaded(models).length === 0) await Bun.sleep(1);
    expect(models.hasFailed).toBe(false);
  });

  test("stay as long as a request has said, until another one says otherwise", async () => {
    const models = await serve(2, { idleMs: 3_600_000 });
    const leftMs = () => models.loaded().map(({ expiresMs }) => expiresMs - Date.now());
    (await models.use("default")).end();
    expect(leftMs()[0]).toBeWithin(3_590_000, 3_600_001);
    (await models.use("default", 60_000)).end();
    const use = await models.use("default");
    expect(leftMs()[0]).toBeWithin(50_000, 60_001);
    use.end();
    (await models.use("default", Number.POSITIVE_INFINITY)).end();
    expect(leftMs()).toEqual([Number.POSITIVE_INFINITY]);
    const last = await models.use("default", 0);
    (await models.use("default")).end();
    expect(loaded(models)).toEqual(["main-folder"]);
    last.end();
    while (loaded(models).length > 0) await Bun.sleep(1);
    // Loaded again, it stays as long as the server says.
    (await models.use("default")).end();
    expect(leftMs()[0]).toBeWithin(3_590_000, 3_600_001);
  });

  test("are released so that their files can go, except those in use and the one given at start", async () => {
    const models = await serve(3);
    const folderOf = (name: string) => join(env.HF_HUB_CACHE, `models--org--${name}`);
    for (const name of ["default", "org/b"]) (await models.use(name)).end();
    const use = await models.use("org/a");
    await expect(models.release(folderOf("a"))).rejects.toThrow("it is answering requests");
    await expect(models.release(root)).rejects.toThrow("the server was started with it");
    expect(loaded(models)).toEqual(["main-folder", "org/b", "org/a"]);
    use.end();
    await models.release(folderOf("a"));
    expect(loaded(models)).toEqual(["main-folder", "org/b"]);
    // Another one whose name begins alike stays.
    await models.release(join(env.HF_HUB_CACHE, "models--org-"));
    expect(loaded(models)).toEqual(["main-folder", "org/b"]);
    expect(await ask(models, "org/a")).toBe(3);
  });

  test("are nothing else: no path, no unknown name", async () => {
    const models = await serve(2);
    for (const name of [main.path, "../main", "org/none", "a\0b"]) {
      await expect(models.use(name)).rejects.toThrow(ModelNotFoundError);
    }
    expect(loaded(models)).toEqual([]);
  });

  test("whose files are invalid fail each request, and count for nothing", async () => {
    const models = await serve(1);
    for (let i = 0; i < 2; i++) {
      const error = await models.use("org/broken").catch((thrown) => thrown);
      expect(error).toBeInstanceOf(ModelLoadError);
    }
    (await models.use("org/a")).end();
    expect(loaded(models)).toEqual(["org/a"]);
  });
});

describe("a request that arrives while its model", () => {
  test("is unloaded loads it again, and is answered", async () => {
    const models = await serve(2);
    expect(await ask(models, "default")).toBe(3);
    const unloading = models.unload("default");
    const asked = [ask(models, "default"), ask(models, "default")];
    expect(await unloading).toBe(true);
    expect(await Promise.all(asked)).toEqual([3, 3]);
    expect(loaded(models)).toEqual(["main-folder"]);
  });

  test("is evicted loads it again, and is answered", async () => {
    const models = await serve(2);
    expect(await ask(models, "org/a")).toBe(3);
    expect(await ask(models, "default")).toBe(3);
    // The first takes the place of the second's model, and the second that of the default model.
    expect(await Promise.all([ask(models, "org/b"), ask(models, "org/a")])).toEqual([3, 3]);
    expect(loaded(models).toSorted()).toEqual(["org/a", "org/b"]);
    expect((await engine.stats()).map(({ model }) => model).toSorted()).toEqual(["org/a", "org/b"]);
  });

  test("is unloaded for being idle loads it again, and is answered", async () => {
    const unloaded: string[] = [];
    const idle = Promise.withResolvers<void>();
    const unload = spyOn(engine, "unload");
    const models = await serve(2, { idleMs: 20, onUnload: (name) => unloaded.push(name) });
    unload.mockImplementationOnce((name) => {
      idle.resolve();
      return engine.unload(name);
    });
    expect(await ask(models, "default")).toBe(3);
    await idle.promise;
    // The message is on its way, and nothing has come back.
    expect([unloaded, loaded(models)]).toEqual([[], []]);
    expect(await ask(models, "default")).toBe(3);
    unload.mockRestore();
    while (unloaded.length < 2) await Bun.sleep(5);
    expect([unloaded, loaded(models)]).toEqual([["main-folder", "main-folder"], []]);
    expect(await engine.stats()).toEqual([]);
  });

  test("is about to be unloaded for being idle keeps it loaded", async () => {
    const models = await serve(2, { idleMs: 100 });
    (await models.use("default")).end();
    const { end } = await models.use("default");
    await Bun.sleep(200);
    expect(loaded(models)).toEqual(["main-folder"]);
    (await models.use("default")).end();
    await Bun.sleep(200);
    expect(loaded(models)).toEqual(["main-folder"]);
    end();
    while (loaded(models).length > 0) await Bun.sleep(5);
  });

  test("is loaded keeps it from being unloaded", async () => {
    const models = await serve(1);
    const asked = ask(models, "org/a");
    await expect(models.unload("org/a")).rejects.toThrow(NoRoomError);
    await expect(models.use("org/b")).rejects.toThrow(NoRoomError);
    expect(await asked).toBe(3);
  });
});

test("of two unloads at once, one finds the model loaded", async () => {
  const models = await serve(2);
  (await models.use("org/a")).end();
  const both = ["org/a", "org/a"].map((name) => models.unload(name));
  expect(await Promise.all(both)).toEqual([true, false]);
  expect(await engine.stats()).toEqual([]);
});
