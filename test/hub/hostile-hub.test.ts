// Hubs that answer too much, wrongly or never, and caches with links of others in them.
import { beforeEach, describe, expect, test } from "bun:test";
import {
  chownSync,
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { removeFromCache } from "../../src/hub/cache.ts";
import { type PullOptions, pullModel } from "../../src/hub/pull.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";
import { failure, LoopbackHub, sha256 } from "./loopback-hub.ts";

const root = temporaryFolder();

const ID = "org/tiny";
const commit = "c".repeat(40);
const revision = `/api/models/${ID}/revision/main`;
const tree = `/api/models/${ID}/tree/${commit}`;
const file = { type: "file", path: "config.json", size: 2, oid: "a".repeat(40) };

let cache: string;
beforeEach(() => {
  cache = mkdtempSync(join(root, "cache-"));
});

/** Answers by path; what is JSON needs no Response. */
type Answers = Record<string, unknown | ((request: Request) => unknown)>;

/** A hub that gives these answers, and what it was asked. */
function hubOf(answers: Answers) {
  const asked: { path: string; authorization: string | null }[] = [];
  const server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    fetch(request) {
      const { pathname } = new URL(request.url);
      asked.push({ path: pathname, authorization: request.headers.get("authorization") });
      const known: Answers = { [revision]: { sha: commit }, ...answers };
      const answer = known[pathname];
      const value = typeof answer === "function" ? answer(request) : answer;
      if (value instanceof Response || value instanceof Promise) return value;
      return value === undefined ? new Response("", { status: 404 }) : Response.json(value);
    },
  });
  return { url: server.url.origin, asked, [Symbol.dispose]: () => void server.stop(true) };
}

function pull(url: string, options: PullOptions = {}): Promise<unknown> {
  const env = { HF_HUB_CACHE: cache, HF_ENDPOINT: url, HOME: root, HF_TOKEN: "secret" };
  return pullModel(ID, { env, ...options, retry: { attempts: 2, delayMs: 1, ...options.retry } });
}

const redirect = (location: string) => () =>
  new Response(null, { status: 302, headers: { Location: location } });

describe("an answer of the wrong kind is one line that names the hub and what was expected", () => {
  const html = () => new Response("<html>", { headers: { "Content-Type": "text/html" } });
  const cut = () => new Response('[{"type": "fi');
  const entry = (fields: object) => [{ ...file, ...fields }];
  const wrong: [string, Answers, string][] = [
    ["a page for a revision", { [revision]: html }, "expected JSON"],
    ["a list for a revision", { [revision]: [] }, "expected object"],
    ["a number for a commit", { [revision]: { sha: 7 } }, "expected string"],
    ["a path for a commit", { [revision]: { sha: "../../x" } }, "expected a commit as sha"],
    ["no commit", { [revision]: {} }, "expected string, received undefined as sha"],
    ["a page for a list", { [tree]: html }, "expected JSON"],
    ["half a list", { [tree]: cut }, "expected JSON"],
    ["an object for a list", { [tree]: { siblings: [] } }, "expected array"],
    ["a text for an entry", { [tree]: ["config.json"] }, "expected object, received string as 0"],
    ["null for an entry", { [tree]: [null] }, "expected object, received null as 0"],
    ["a number for a type", { [tree]: entry({ type: 7 }) }, "expected string"],
    ["a text for a size", { [tree]: entry({ size: "2" }) }, "expected number"],
    ["a size below 0", { [tree]: entry({ size: -1 }) }, "expected number to be >=0 as size"],
    ["half a byte", { [tree]: entry({ size: 1.5 }) }, "expected int"],
    ["a size of 2^53", { [tree]: entry({ size: 2 ** 53 }) }, "as size"],
    ["no path", { [tree]: entry({ path: undefined }) }, "received undefined as path"],
    ["a list for a path", { [tree]: entry({ path: ["a"] }) }, "expected string"],
    ["a long path", { [tree]: entry({ path: "a".repeat(1025) }) }, "<=1024 characters as path"],
    ["no checksum", { [tree]: entry({ oid: undefined }) }, "received undefined as oid"],
    ["nothing of LFS", { [tree]: entry({ lfs: {} }) }, "as lfs.oid"],
    ["LFS without a size", { [tree]: entry({ lfs: { oid: "a" } }) }, "as lfs.size"],
  ];
  test.each(wrong)("%s", async (_, answers, expected) => {
    using hub = hubOf(answers);
    const message = await failure(pull(hub.url));
    expect(message).toStartWith(`${hub.url} does not respond like a hub: expected `);
    expect(message).toContain(expected);
    expect(readdirSync(cache)).toEqual([]);
  });
});

describe("a listing is bounded", () => {
  const page = (url: string, files: object[] = []) =>
    Response.json(files, { headers: { Link: `<${url}>; rel="next"` } });

  test("in its pages", async () => {
    using hub = hubOf({ [tree]: (request: Request) => page(request.url) });
    expect(await failure(pull(hub.url))).toBe(`${ID} lists its files on more than 100 pages`);
    expect(hub.asked.length).toBe(101);
  });

  test("in its files", async () => {
    const files = Array.from({ length: 1001 }, (_, i) => ({ ...file, path: `${i}.json` }));
    using hub = hubOf({ [tree]: (request: Request) => page(request.url, files) });
    expect(await failure(pull(hub.url))).toBe(`${ID} lists more than 10000 files`);
    expect(hub.asked.length).toBe(11);
  });

  test("in the sum of its sizes", async () => {
    const size = Number.MAX_SAFE_INTEGER;
    const files = ["a.json", "b.json"].map((path) => ({ ...file, path, size }));
    using hub = hubOf({ [tree]: files });
    expect(await failure(pull(hub.url))).toContain("more bytes than any disk can hold");
  });

  test("to the hub itself, which alone gets the token", async () => {
    using other = hubOf({ "/next": [] });
    for (const next of [`${other.url}/next`, "file:///etc/passwd", "//", "http://"]) {
      using hub = hubOf({ [tree]: () => page(next) });
      expect(await failure(pull(hub.url))).toContain("expected the next page at its own address");
    }
    expect(other.asked).toEqual([]);
  });

  test("and may have several pages", async () => {
    const text = "{}";
    const oid = new Bun.CryptoHasher("sha1").update(`blob 2\0${text}`).digest("hex");
    const names = ["config.json", "tokenizer.json", "model.safetensors"];
    using hub = hubOf({
      [tree]: ({ url }: Request) => {
        const at = Number(new URL(url).searchParams.get("at") ?? 0);
        const files = [{ ...file, path: names[at]!, oid }, { type: "directory" }];
        return at < 2 ? page(`${tree}?at=${at + 1}`, files) : files;
      },
      ...Object.fromEntries(
        names.map((name) => [`/${ID}/resolve/${commit}/${name}`, () => new Response(text)]),
      ),
    });
    expect(await pull(hub.url)).toMatchObject({ files: 3, bytes: 6 });
  });

  test("in its bytes, also where they never end", async () => {
    let sent = 0;
    const endless = () =>
      new Response(
        new ReadableStream({
          pull(controller) {
            sent += 2 ** 20;
            controller.enqueue(new Uint8Array(2 ** 20).fill(0x20));
          },
        }),
      );
    using hub = hubOf({ [tree]: endless });
    expect(await failure(pull(hub.url))).toContain("expected at most 16777216 bytes");
    // What is in the system's buffers has been sent too.
    expect(sent).toBeLessThan(128 * 2 ** 20);
  });

  test("in its time", async () => {
    const silent = () => new Response(new ReadableStream({ pull: () => new Promise(() => {}) }));
    for (const answer of [silent, () => new Promise(() => {})]) {
      using hub = hubOf({ [tree]: answer });
      const message = await failure(pull(hub.url, { retry: { stallMs: 100 } }));
      expect(message).toContain("(no response)");
    }
  });
});

describe("a redirect", () => {
  test("is followed ten times at most", async () => {
    using hub = hubOf({ [revision]: redirect("/again"), "/again": redirect("/again") });
    expect(await failure(pull(hub.url))).toBe(`${hub.url} redirects more than 10 times`);
    expect(hub.asked.length).toBe(11);
  });

  test("leads to http or https only", async () => {
    const secret = join(root, "secret.json");
    writeFileSync(secret, JSON.stringify({ sha: commit }));
    const data = `data:application/json,{"sha":"${commit}"}`;
    const places = [`file://${secret}`, data, "ftp://a.example/", "blob:x", "http://", ""];
    for (const place of places.slice(0, -1)) {
      using hub = hubOf({ [revision]: redirect(place) });
      const message = await failure(pull(hub.url));
      expect(message).toStartWith(`${hub.url} redirects to "${place.slice(0, 4)}`);
      expect(message).toContain("expected a URL of https or http");
      expect(hub.asked.length).toBe(1);
    }
  });

  test("loses the token once it has left the hub, for good", async () => {
    let [home, away] = ["", ""];
    using other = hubOf({ "/away": () => redirect(`${home}/back`)() });
    using hub = hubOf({
      [revision]: () => redirect("/moved")(),
      "/moved": () => redirect(away)(),
      "/back": { sha: commit },
      [tree]: [],
    });
    [home, away] = [hub.url, `${other.url}/away`];
    expect(await failure(pull(hub.url))).toContain("has neither safetensors nor GGUF files");
    expect(other.asked).toEqual([{ path: "/away", authorization: null }]);
    expect(hub.asked.map(({ path, authorization }) => [path, authorization])).toEqual([
      [revision, "Bearer secret"],
      ["/moved", "Bearer secret"],
      ["/back", null],
      [tree, "Bearer secret"],
    ]);
  });

  // The certificate of the hub is made here.
  test.if(Bun.which("openssl") !== null)("never leads from https to http", async () => {
    using other = hubOf({ "/plain": { sha: commit } });
    const [key, cert] = [join(root, "key.pem"), join(root, "cert.pem")];
    const request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"];
    Bun.spawnSync(["openssl", ...request, "-keyout", key, "-out", cert]);
    const server = Bun.serve({
      port: 0,
      tls: { key: readFileSync(key, "utf8"), cert: readFileSync(cert, "utf8") },
      fetch: redirect(`${other.url}/plain`),
    });
    const program = `import { pull } from "${join(import.meta.dir, "../../src/cli/models/pull.ts")}";
      await pull(["${ID}"]).catch(({ message }) => console.log(message));`;
    const url = `https://localhost:${server.port}`;
    const child = Bun.spawn([process.execPath, "-e", program], {
      env: {
        ...{ HF_HUB_CACHE: cache, HF_ENDPOINT: url, HOME: root, HF_TOKEN: "secret" },
        NODE_TLS_REJECT_UNAUTHORIZED: "0",
      },
      stderr: "ignore",
    });
    const said = await new Response(child.stdout).text();
    expect(said).toBe(`${url} redirects to "${other.url}/plain": expected a URL of https\n`);
    expect(other.asked).toEqual([]);
    await server.stop(true);
  });
});

const weights = Buffer.alloc(5000, 7);
const files = {
  "config.json": { content: Buffer.from("{}") },
  "model.safetensors": { content: weights, big: true },
};
const repo = (...path: string[]) => join(cache, "models--org--tiny", ...path);
const incomplete = () => repo("blobs", `${sha256(weights)}.incomplete`);

async function withHub<T>(use: (hub: LoopbackHub, commit: string) => Promise<T>): Promise<T> {
  const hub = await LoopbackHub.start();
  try {
    return await use(hub, hub.add(ID, { files }));
  } finally {
    await hub.stop();
  }
}

test("a part that was not asked for is refused, with the hub's name", async () => {
  const ranges = ["bytes 7-4999/5000", "bytes */5000", "bytes 18446744073709551616-1/1", ""];
  for (const range of ranges) {
    const lfs = { oid: sha256(weights), size: weights.length };
    using hub = hubOf({
      [tree]: [{ ...file, path: "model.safetensors", lfs }],
      [`/${ID}/resolve/${commit}/model.safetensors`]: () =>
        new Response(weights, { status: 206, headers: { "Content-Range": range } }),
    });
    expect(await failure(pull(hub.url))).toMatch(/^http:.* sent .*, expected bytes from 0 on$/);
  }
});

describe("a partial download is continued only if it is ours", () => {
  const outside = () => join(cache, "outside");
  const plant: [string, () => void][] = [
    ["a link", () => symlinkSync(outside(), incomplete())],
    ["a second name of a file", () => linkSync(outside(), incomplete())],
    ["a link to nowhere", () => symlinkSync(join(cache, "new"), incomplete())],
    ["a FIFO", () => void Bun.spawnSync(["mkfifo", incomplete()])],
  ];
  test.each(plant)("not %s", async (_, make) => {
    mkdirSync(dirname(incomplete()), { recursive: true });
    writeFileSync(outside(), "not the model's");
    make();
    await withHub(async (hub) => {
      await pull(hub.url);
      expect(hub.requestsOf("model.safetensors").map(({ range }) => range)).toEqual([undefined]);
    });
    expect(lstatSync(repo("blobs", sha256(weights))).isFile()).toBe(true);
    expect(readFileSync(outside(), "utf8")).toBe("not the model's");
    expect(existsSync(join(cache, "new"))).toBe(false);
  });

  // Only root can make a file of someone else's.
  test.if(process.getuid?.() === 0)("not another user's file", async () => {
    mkdirSync(dirname(incomplete()), { recursive: true });
    writeFileSync(incomplete(), weights.subarray(0, 1000));
    chownSync(incomplete(), 12345, 12345);
    await withHub(async (hub) => {
      await pull(hub.url);
      expect(hub.bytesOf("model.safetensors")).toBe(weights.length);
    });
    expect(lstatSync(repo("blobs", sha256(weights))).uid).toBe(0);
  });
});

describe("no link leads a pull out of the cache", () => {
  const links: [string, (commit: string) => string][] = [
    ["the repo", () => repo()],
    ["its blobs", () => repo("blobs")],
    ["its snapshots", () => repo("snapshots")],
    ["a snapshot", (at) => repo("snapshots", at)],
    ["its refs", () => repo("refs")],
    ["the locks", () => join(cache, ".locks")],
    ["the repo's lock", () => join(cache, ".locks", "models--org--tiny")],
    ["the file of the lock", () => join(cache, ".locks", "models--org--tiny", "mlx-serve.lock")],
  ];
  test.each(links)("%s", async (_, place) => {
    const outside = mkdtempSync(join(root, "outside-"));
    await withHub(async (hub, at) => {
      mkdirSync(dirname(place(at)), { recursive: true });
      const isFile = place(at).endsWith(".lock");
      symlinkSync(isFile ? join(outside, "new") : outside, place(at));
      expect(await failure(pull(hub.url))).toContain(
        "is a link to a place outside the cache: remove it",
      );
    });
    expect(readdirSync(outside)).toEqual([]);
  });

  test("the name under which a ref is written first", async () => {
    const outside = join(mkdtempSync(join(root, "outside-")), "file");
    mkdirSync(repo("refs"), { recursive: true });
    symlinkSync(outside, repo("refs", `main.${process.pid}.tmp`));
    await withHub((hub) => pull(hub.url));
    expect(existsSync(outside)).toBe(false);
    expect(lstatSync(repo("refs", "main")).isFile()).toBe(true);
  });

  test("but a cache that is a link itself is used, and so are links within it", async () => {
    const real = cache;
    cache = join(mkdtempSync(join(root, "link-")), "cache");
    symlinkSync(real, cache);
    mkdirSync(join(real, "blobs-of-all"));
    mkdirSync(repo());
    symlinkSync("../blobs-of-all", repo("blobs"));
    await withHub((hub) => pull(hub.url));
    expect(readdirSync(join(real, "blobs-of-all")).length).toBe(2);
  });

  test.each(["", "snapshots"])("nor a removal: %s", async (part) => {
    const outside = mkdtempSync(join(root, "outside-"));
    const kept = join(outside, part === "" ? "snapshots" : "", commit, "config.json");
    mkdirSync(dirname(kept), { recursive: true });
    writeFileSync(kept, "{}");
    mkdirSync(dirname(repo(part)), { recursive: true });
    symlinkSync(outside, repo(part));
    expect(() => removeFromCache(cache, ID)).toThrow(
      "is a link to a place outside the cache: remove it",
    );
    expect(existsSync(kept)).toBe(true);
  });
});
