import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { HubError } from "../../src/hub/hub-error.ts";
import { diskError } from "../../src/hub/partial-blob.ts";
import { type PullEvent, type PullOptions, pullModel } from "../../src/hub/pull.ts";
import { resolveModel } from "../../src/hub/source.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";
import { type Fault, failure, gitSha1, type HubFile, LoopbackHub, sha256 } from "./loopback-hub.ts";

const ID = "org/tiny";
const weights = new Uint8Array(400_000).map((_, i) => (i * i) >> 3);
const config = Buffer.from('{"model_type":"tiny"}');
const files: Record<string, HubFile> = {
  "config.json": { content: config },
  "tokenizer.json": { content: Buffer.from("{}") },
  "model.safetensors": { content: weights, big: true },
};

const root = temporaryFolder();
let hub: LoopbackHub;
let cache: string;
let env: Record<string, string>;
beforeEach(async () => {
  hub = await LoopbackHub.start();
  cache = mkdtempSync(join(root, "cache-"));
  env = { HF_HUB_CACHE: cache, HF_ENDPOINT: hub.url, HOME: root };
});
afterEach(() => hub.stop());

const pull = (options: PullOptions = {}, id = ID) =>
  pullModel(id, { env, ...options, retry: { delayMs: 1, ...options.retry } });
const repo = (...path: string[]) => join(cache, "models--org--tiny", ...path);
const incomplete = () => repo("blobs", `${sha256(weights)}.incomplete`);

/** The connection is cut when the bytes are on the disk: those on their way would be lost with it. */
const cut = (afterBytes: number, size = afterBytes): Fault => ({
  kind: "cut",
  afterBytes,
  when: () => sizeOfIncomplete() === size,
});

const sizeOfIncomplete = () => statSync(incomplete(), { throwIfNoEntry: false })?.size;

async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await Bun.sleep(1);
}

describe("a pull", () => {
  test("lays the files out as huggingface_hub does", async () => {
    const commit = hub.add(ID, { files });
    const pulled = await pull();
    const bytes = Object.values(files).reduce((sum, { content }) => sum + content.length, 0);
    const path = repo("snapshots", commit);
    expect(pulled).toEqual({ path, commit, files: 3, bytes, downloadedBytes: bytes });

    expect(readFileSync(repo("refs", "main"), "utf8")).toBe(commit);
    expect(readdirSync(repo("blobs")).sort()).toEqual(
      [gitSha1(config), gitSha1(Buffer.from("{}")), sha256(weights)].sort(),
    );
    expect(readdirSync(path).sort()).toEqual(Object.keys(files).sort());
    for (const [name, { content, big }] of Object.entries(files)) {
      const blob = big ? sha256(content) : gitSha1(content);
      expect(readlinkSync(join(path, name))).toBe(`../../blobs/${blob}`);
      expect(readFileSync(join(path, name)).equals(content)).toBe(true);
    }
    expect(resolveModel(ID, { env })).toEqual({ kind: "folder", path, name: ID });
  });

  test("takes what a model needs and no second copy of the weights", async () => {
    const one = { content: Buffer.from("x") };
    const wanted = ["config.json", "merges.txt", "tokenizer.model", "chat_template.jinja"];
    const shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    const index = "model.safetensors.index.json";
    const others = [
      "README.md",
      "pytorch_model.bin",
      "pytorch_model.bin.index.json",
      "consolidated.safetensors",
      "onnx/model.onnx",
      "original/params.json",
      "tiny-Q4_0.gguf",
    ];
    const names = [...wanted, ...shards, index, ...others];
    hub.add(ID, { files: Object.fromEntries(names.map((name) => [name, one])) });
    const { path } = await pull();
    expect(readdirSync(path).sort()).toEqual([...wanted, ...shards, index].sort());
  });

  test("takes the modules of sentence-transformers", async () => {
    const one = { content: Buffer.from("{}") };
    const names = ["modules.json", "1_Pooling/config.json", "model.safetensors"];
    const others = ["1_Pooling/notes.txt", "2_Dense/pytorch_model.bin", "onnx/config.json"];
    hub.add(ID, { files: Object.fromEntries([...names, ...others].map((name) => [name, one])) });
    const { path } = await pull();
    const found = readdirSync(path, { recursive: true, encoding: "utf8" });
    expect(found.sort()).toEqual(["1_Pooling", ...names].sort());
  });

  test("takes the GGUF file that is named, and asks where several are there", async () => {
    const gguf = (text: string) => ({ content: Buffer.from(text), big: true });
    const names = ["tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf", "mmproj-tiny-f16.gguf"];
    hub.add(ID, { files: Object.fromEntries(names.map((name) => [name, gguf(name)])) });
    expect(await failure(pull())).toContain("from tiny-Q4_K_M.gguf, tiny-Q8_0.gguf");
    const { path } = await pull({ file: "q8_0" });
    expect(readdirSync(path)).toEqual(["tiny-Q8_0.gguf"]);
    expect(resolveModel(ID, { env }).kind).toBe("gguf");
  });

  test("takes all parts of the GGUF file that is named", async () => {
    const part = (kind: string, number: number) =>
      `${kind}/tiny-${kind}-0000${number}-of-00002.gguf`;
    const names = ["Q4_K_M", "Q8_0"].flatMap((kind) => [1, 2].map((i) => part(kind, i)));
    const others = ["Q8_0/tiny-Q8_0-00001-of-00003.gguf"];
    const content = Buffer.from("part");
    const listed = [...names, ...others].map((name) => [name, { content, big: true }]);
    hub.add(ID, { files: Object.fromEntries(listed) });
    expect(await failure(pull())).toContain(`from ${part("Q4_K_M", 1)}, ${part("Q8_0", 1)}`);
    const { path } = await pull({ file: "Q4_K_M" });
    const found = readdirSync(path, { recursive: true }).sort();
    expect(found).toEqual(["Q4_K_M", part("Q4_K_M", 1), part("Q4_K_M", 2)]);
  });

  test("takes what --include names, folders too", async () => {
    hub.add(ID, { files: { ...files, "onnx/model.onnx": { content: Buffer.from("o") } } });
    const { path } = await pull({ include: ["onnx/*"] });
    expect(readdirSync(path)).toEqual(["onnx"]);
    expect(readlinkSync(join(path, "onnx/model.onnx"))).toStartWith("../../../blobs/");
  });

  test("a second time downloads nothing", async () => {
    hub.add(ID, { files });
    await pull();
    const before = hub.bytes;
    expect((await pull()).downloadedBytes).toBe(0);
    expect(hub.bytes).toBe(before);
  });

  test("of a new commit downloads only what has changed, and keeps the old one", async () => {
    const old = hub.add(ID, { files });
    await pull();
    const changed = { ...files, "config.json": { content: Buffer.from('{"model_type":"new"}') } };
    const commit = hub.add(ID, { files: changed });
    const { downloadedBytes } = await pull();
    expect(downloadedBytes).toBe(changed["config.json"]!.content.length);
    expect(readFileSync(repo("refs", "main"), "utf8")).toBe(commit);
    expect(readdirSync(repo("snapshots")).sort()).toEqual([old, commit].sort());
  });

  test("of a branch with a slash keeps its name", async () => {
    const commit = hub.add(ID, { files, revisions: ["refs/pr/7"] });
    await pull({ revision: "refs/pr/7" });
    expect(readFileSync(repo("refs", "refs", "pr", "7"), "utf8")).toBe(commit);
  });

  test("of two files with the same contents downloads them once", async () => {
    const content = Buffer.from("{}");
    hub.add(ID, { files: { ...files, "a.json": { content }, "b.json": { content } } });
    await pull();
    expect(hub.bytesOf("a.json") + hub.bytesOf("b.json") + hub.bytesOf("tokenizer.json")).toBe(2);
  });
});

describe("an interrupted pull", () => {
  test("goes on where the connection was cut, in the same run", async () => {
    hub.add(ID, { files });
    hub.faults.set("model.safetensors", [cut(100_000), cut(100_000, 200_000)]);
    const events: PullEvent[] = [];
    // Two in a row without a byte would be too many, and each of these brings some.
    const { path } = await pull({ retry: { attempts: 2 }, onEvent: (event) => events.push(event) });
    expect(readFileSync(join(path, "model.safetensors")).equals(weights)).toBe(true);
    expect(hub.bytesOf("model.safetensors")).toBe(weights.length);
    expect(events.filter(({ kind }) => kind === "retry")).toHaveLength(2);
  });

  test("goes on in the next run, without downloading anything twice", async () => {
    hub.add(ID, { files });
    hub.faults.set("model.safetensors", [cut(150_000)]);
    expect(await failure(pull({ retry: { attempts: 1 } }))).toContain("check the network");
    expect(statSync(incomplete()).size).toBe(150_000);
    expect(existsSync(repo("refs"))).toBe(false);
    expect(() => resolveModel(ID, { env })).toThrow("not in the cache");

    const events: PullEvent[] = [];
    const { path } = await pull({ onEvent: (event) => events.push(event) });
    expect(events[0]).toMatchObject({ kind: "listed" });
    expect(hub.requestsOf("model.safetensors").map(({ range }) => range)).toEqual([
      undefined,
      "bytes=150000-",
    ]);
    expect(hub.bytesOf("model.safetensors")).toBe(weights.length);
    expect(readFileSync(join(path, "model.safetensors")).equals(weights)).toBe(true);
    expect(readdirSync(repo("blobs")).filter((name) => name.endsWith(".incomplete"))).toEqual([]);
  });

  test("that was killed leaves its bytes, and no lock", async () => {
    hub.add(ID, { files });
    const never = new Promise<void>(() => {});
    hub.faults.set("model.safetensors", [{ kind: "hold", afterBytes: 50_000, until: never }]);
    const script = `import { pull } from "${join(import.meta.dir, "../../src/cli/models/pull.ts")}";
      await pull(["${ID}"]);`;
    const child = Bun.spawn([process.execPath, "-e", script], { env, stderr: "ignore" });
    await until(() => sizeOfIncomplete() === 50_000);
    child.kill("SIGKILL");
    await child.exited;

    await pull();
    expect(hub.requestsOf("model.safetensors").at(-1)!.range).toBe("bytes=50000-");
  });

  test("starts over where the server sends the whole file again", async () => {
    hub.add(ID, { files });
    hub.faults.set("model.safetensors", [cut(1000), { kind: "whole" }]);
    const { path } = await pull();
    expect(readFileSync(join(path, "model.safetensors")).equals(weights)).toBe(true);
  });

  test("tries again when the connection says nothing", async () => {
    hub.add(ID, { files });
    const never = new Promise<void>(() => {});
    hub.faults.set("model.safetensors", [{ kind: "hold", afterBytes: 1000, until: never }]);
    const reasons: string[] = [];
    await pull({
      retry: { stallMs: 100 },
      onEvent: (event) => event.kind === "retry" && reasons.push(event.reason),
    });
    expect(reasons).toEqual([expect.stringContaining("(no response)")]);
    expect(hub.requestsOf("model.safetensors").at(-1)!.range).toBe("bytes=1000-");
  });

  test("is not what a slow connection is", async () => {
    hub.add(ID, { files });
    hub.faults.set("model.safetensors", [{ kind: "trickle", pieces: 6, everyMs: 200 }]);
    const kinds = new Set<string>();
    await pull({ retry: { stallMs: 1000 }, onEvent: ({ kind }) => kinds.add(kind) });
    expect(kinds.has("retry")).toBe(false);
  });

  test("tries again when the hub is busy, and gives up in the end", async () => {
    hub.add(ID, { files });
    hub.faults.set("tree", [{ kind: "status", status: 503 }]);
    hub.faults.set("config.json", [{ kind: "status", status: 429 }]);
    await pull();
    hub.faults.set("revision", Array(9).fill({ kind: "status", status: 500 }));
    expect(await failure(pull({ retry: { attempts: 3 } }))).toContain("returned 500");
    expect(hub.faults.get("revision")).toHaveLength(6);
  });
});

describe("what was received", () => {
  test("is refused and not kept where its checksum is wrong", async () => {
    for (const [name, file] of Object.entries(files)) {
      const content = Uint8Array.from(file.content);
      content[content.length - 1]! ^= 1;
      const oid = file.big ? sha256(file.content) : gitSha1(file.content);
      hub.add(ID, { files: { ...files, [name]: { ...file, content, listed: { oid } } } });
      expect(await failure(pull())).toContain(`${name} differs from the listing of the hub`);
      const kept = readdirSync(repo("blobs")).filter((blob) => blob.startsWith(oid));
      expect(kept).toEqual([]);
      expect(existsSync(repo("snapshots"))).toBe(false);
      rmSync(repo(), { recursive: true });
    }
  });

  test("is refused where there is more of it than was listed", async () => {
    const listed = { oid: sha256(weights), bytes: weights.length - 1 };
    hub.add(ID, {
      files: { ...files, "model.safetensors": { content: weights, big: true, listed } },
    });
    expect(await failure(pull())).toContain("more bytes than it listed");
    expect(existsSync(incomplete())).toBe(false);
  });

  test("is downloaded again if the bytes of an earlier run were wrong", async () => {
    hub.add(ID, { files });
    mkdirSync(repo("blobs"), { recursive: true });
    writeFileSync(incomplete(), Buffer.alloc(1000, 7));
    const { path } = await pull();
    expect(readFileSync(join(path, "model.safetensors")).equals(weights)).toBe(true);
  });

  test("replaces what an earlier run has left too much of", async () => {
    hub.add(ID, { files });
    mkdirSync(repo("blobs"), { recursive: true });
    writeFileSync(incomplete(), Buffer.alloc(weights.length + 1));
    const { path } = await pull();
    expect(readFileSync(join(path, "model.safetensors")).equals(weights)).toBe(true);
  });

  test("never leads out of the cache", async () => {
    const content = Buffer.from("x");
    for (const path of ["../../../evil.json", "a\\..\\evil.json", "a:b.json"]) {
      hub.add(ID, { files: { ...files, [path]: { content } } });
      expect(await failure(pull({ include: ["**"] }))).toContain("lists an invalid file name");
    }
    const listed = { oid: "../../../../evil" };
    hub.add(ID, { files: { ...files, "x.json": { content, listed } } });
    expect(await failure(pull())).toContain("lists an invalid file name");
    expect(existsSync(repo("blobs"))).toBe(false);
  });
});

describe("the hub's refusals say what to do", () => {
  test("the token goes to the hub, and not to the CDN", async () => {
    hub.add(ID, { files, token: "secret" });
    await pull({ env: { ...env, HF_TOKEN: "secret" } });
    const sent = hub.served.map(({ server, authorization }) => `${server} ${authorization}`);
    expect(new Set(sent)).toEqual(new Set(["hub Bearer secret", "cdn undefined"]));
  });

  test("the token of hf auth login is used", async () => {
    hub.add(ID, { files, token: "from-file" });
    const home = mkdtempSync(join(root, "home-"));
    writeFileSync(join(home, "token"), "from-file\n");
    await pull({ env: { ...env, HF_HOME: home } });
  });

  test("no token", async () => {
    hub.add(ID, { files, token: "secret" });
    expect(await failure(pull())).toContain("needs HF_TOKEN");
    expect(existsSync(repo())).toBe(false);
  });

  test("a wrong token", async () => {
    hub.add(ID, { files, token: "secret" });
    const message = await failure(pull({ env: { ...env, HF_TOKEN: "wrong" } }));
    expect(message).toContain("rejects your token");
  });

  test("a gated repo", async () => {
    hub.add(ID, { files, isGated: true });
    const message = await failure(pull());
    expect(message).toContain(`accept its terms on ${hub.url}/${ID}, then set HF_TOKEN`);
  });

  test("no such repo, no such revision", async () => {
    expect(await failure(pull({}, "org/absent"))).toContain("has no org/absent");
    hub.add(ID, { files });
    expect(await failure(pull({ revision: "v9" }))).toBe("org/tiny has no revision v9");
  });

  test("a hub that is not there, and one that is no hub", async () => {
    await hub.stop();
    const message = await failure(pull({ retry: { attempts: 2 } }));
    expect(message).toContain("ECONNREFUSED");
    hub = await LoopbackHub.start();
    using page = Bun.serve({ port: 0, fetch: () => new Response("<html>") });
    const other = { ...env, HF_ENDPOINT: page.url.href };
    expect(await failure(pull({ env: other }))).toContain("does not respond like a hub");
    const wrong = { ...env, HF_ENDPOINT: "ftp://x" };
    expect(await failure(pull({ env: wrong }))).toContain(
      "HF_ENDPOINT must be an http or https URL",
    );
  });

  test("offline, nothing is asked", async () => {
    hub.add(ID, { files });
    const message = await failure(pull({ env: { ...env, HF_HUB_OFFLINE: "1" } }));
    expect(message).toContain("HF_HUB_OFFLINE is set");
    expect(hub.served).toEqual([]);
  });

  test("a name that is a path is not asked for", async () => {
    for (const id of ["../../x", "/etc/x", "a/b/c", "a\\b", "a/..", "a--b/c", ""]) {
      expect(await failure(pull({}, id))).toContain("is not the name of a repo");
    }
    expect(await failure(pull({ revision: "../x" }))).toContain("is not a revision");
    expect(hub.served).toEqual([]);
  });
});

describe("the disk", () => {
  test("with too little room is not written to", async () => {
    const listed = { bytes: 2 ** 52 };
    hub.add(ID, {
      files: { ...files, "model.safetensors": { content: weights, big: true, listed } },
    });
    expect(await failure(pull())).toMatch(
      /^the pull needs 4\.5 PB, but .* free: .*HF_HUB_CACHE to another disk$/,
    );
    expect(hub.bytesOf("model.safetensors")).toBe(0);
  });

  // Only Linux has a file that is always full.
  test.if(process.platform === "linux")("that fills up ends in one line", async () => {
    const write = writeFile("/dev/full", "x").catch((error: unknown) => {
      throw diskError(error, cache);
    });
    expect(await failure(write)).toContain("is full: free some space");
  });

  test("that cannot be written to ends in one line", async () => {
    hub.add(ID, { files });
    writeFileSync(join(cache, "file"), "");
    const other = { ...env, HF_HUB_CACHE: join(cache, "file", "hub") };
    expect(await failure(pull({ env: other }))).toContain("cannot be written (ENOTDIR)");
  });
});

test("two pulls at once download everything once", async () => {
  hub.add(ID, { files });
  const held = Promise.withResolvers<void>();
  hub.faults.set("model.safetensors", [{ kind: "hold", afterBytes: 1000, until: held.promise }]);
  const first = pull();
  await until(() => hub.requestsOf("model.safetensors").length === 1);
  const waiting = Promise.withResolvers<void>();
  const second = pull({ onEvent: ({ kind }) => kind === "waiting" && waiting.resolve() });
  await waiting.promise;
  held.resolve();
  expect((await first).downloadedBytes).toBeGreaterThan(weights.length);
  expect((await second).downloadedBytes).toBe(0);
  expect(hub.bytesOf("model.safetensors")).toBe(weights.length);
});

test("a pull can be stopped, and keeps what it has", async () => {
  hub.add(ID, { files });
  const never = new Promise<void>(() => {});
  hub.faults.set("model.safetensors", [{ kind: "hold", afterBytes: 1000, until: never }]);
  const stop = new AbortController();
  const pulling = pull({ signal: stop.signal });
  await until(() => sizeOfIncomplete() === 1000);
  stop.abort(new HubError("enough"));
  expect(await failure(pulling)).toBe("enough");
  expect(statSync(incomplete()).size).toBe(1000);
});
