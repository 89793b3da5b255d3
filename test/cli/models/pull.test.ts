import { afterAll, afterEach, beforeEach, expect, spyOn, test } from "bun:test";
import { mkdtempSync } from "node:fs";
import { join } from "node:path";
import { pull } from "../../../src/cli/models/pull.ts";
import { LoopbackHub } from "../../hub/loopback-hub.ts";
import { temporaryFolder } from "../../support/temporary-folder.ts";

const log = spyOn(console, "log").mockImplementation(() => {});
const root = temporaryFolder();
afterAll(() => log.mockRestore());

let hub: LoopbackHub;
let env: Record<string, string>;
let texts: string[];
beforeEach(async () => {
  hub = await LoopbackHub.start();
  env = { HF_HUB_CACHE: mkdtempSync(join(root, "cache-")), HF_ENDPOINT: hub.url, HOME: root };
  texts = [];
  log.mockClear();
});
afterEach(() => hub.stop());

const run = (...args: string[]) => pull(args, env, { write: (text: string) => texts.push(text) });
const files = {
  "config.json": { content: Buffer.from("{}") },
  "model.safetensors": { content: Buffer.alloc(9998), big: true },
};

test("pull says what it brings and how far it is, and prints where it is", async () => {
  const commit = hub.add("org/tiny", { files });
  await run("org/tiny");
  expect(texts[0]).toBe(`org/tiny at ${commit.slice(0, 8)}: 2 files, 10.0 kB\n`);
  expect(texts.at(-1)).toStartWith("100%  10.0 kB of 10.0 kB");
  const path = join(env.HF_HUB_CACHE!, "models--org--tiny", "snapshots", commit);
  expect(log.mock.calls).toEqual([[path]]);

  texts = [];
  await run("org/tiny");
  expect(texts.at(-1)).toBe("org/tiny is already in the cache\n");
});

test("pull takes a revision, a file and globs", async () => {
  const gguf = { content: Buffer.from("q"), big: true };
  hub.add("org/tiny", { files: { ...files, "tiny-Q8_0.gguf": gguf }, revisions: ["v1"] });
  await run("org/tiny@v1:Q8_0");
  expect(hub.bytesOf("tiny-Q8_0.gguf")).toBe(1);
  expect(hub.bytesOf("model.safetensors")).toBe(0);
  await run("org/tiny@v1", "--include", "*.safetensors", "--include", "nothing");
  expect(hub.bytesOf("model.safetensors")).toBe(9998);
});

test("pull takes a short name, and asks the hub for no name that can be none", async () => {
  hub.add("mlx-community/Qwen3-0.6B-4bit", { files });
  await run("qwen3:0.6b");
  expect(texts[0]).toStartWith("mlx-community/Qwen3-0.6B-4bit at ");
  const asked = hub.served.length;
  await expect(run("qwen3:0.5b")).rejects.toThrow("did you mean qwen3:0.6b?");
  await expect(run("qwen3")).rejects.toThrow("did you mean qwen3:32b, qwen3:30b, ");
  expect(hub.served.length).toBe(asked);
});

test("pull --json prints progress and result as objects, one a line", async () => {
  hub.add("org/tiny", { files });
  await run("org/tiny", "--json");
  const events = texts.map((line) => JSON.parse(line));
  expect(events.at(-1)).toEqual({ event: "pull", model: "org/tiny", done: 10_000, total: 10_000 });
  expect(JSON.parse(String(log.mock.calls[0]![0]))).toMatchObject({
    model: "org/tiny",
    path: expect.stringContaining("models--org--tiny"),
    bytes: 10_000,
    downloadedBytes: 10_000,
  });
});

test("pull refuses what it does not know, by name", async () => {
  for (const [args, message] of [
    [["org/tiny", "--frobnicate"], "--frobnicate"],
    [[], "usage: mlx-serve pull"],
    [["org/a", "org/b"], "usage: mlx-serve pull"],
    [["../../x"], "is not the name of a repo"],
  ] as const) {
    await expect(run(...args)).rejects.toThrow(message);
  }
  expect(hub.served).toEqual([]);
});
