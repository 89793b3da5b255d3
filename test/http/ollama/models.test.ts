// Ollama's endpoints about models, against a hub on loopback; and --ollama-port.
import {
  afterAll,
  afterEach,
  beforeAll,
  describe,
  expect,
  setDefaultTimeout,
  spyOn,
  test,
} from "bun:test";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Ollama, type ProgressResponse } from "ollama";
import { type OllamaChatResponse, OllamaError } from "../../../src/api/ollama/generate.ts";
import {
  OllamaPs,
  OllamaPullStatus,
  OllamaShow,
  OllamaTags,
} from "../../../src/api/ollama/models.ts";
import { type HubFile, LoopbackHub } from "../../hub/loopback-hub.ts";
import { writeChatModel } from "../../support/chat-model.ts";
import { editJson } from "../../support/dialect-model.ts";
import { startTestServer, type TestServer } from "../../support/server.ts";

setDefaultTimeout(30_000);

const root = mkdtempSync(join(tmpdir(), "ollama-models-"));
const cache = join(root, "hub");
const name = "org/pulled";
let hub: LoopbackHub;
let server: TestServer;
let client: Ollama;

/** The files of a model that can be pulled. */
function filesOf(folder: string): Record<string, HubFile> {
  const names = readdirSync(folder).filter((each) => /\.(json|safetensors)$/.test(each));
  return Object.fromEntries(
    names.map((each) => {
      const big = each.endsWith(".safetensors");
      return [each, { content: readFileSync(join(folder, each)), big }];
    }),
  );
}

beforeAll(async () => {
  hub = await LoopbackHub.start();
  const folder = join(root, "model");
  writeChatModel(folder);
  editJson(join(folder, "tokenizer_config.json"), ({ chat_template, ...rest }) => {
    return { ...rest, chat_template: `${chat_template}{# <think> </think> #}` };
  });
  hub.add(name, { files: filesOf(folder) });
  server = await startTestServer({
    args: ["--ollama-port", "0", "--max-models", "2", "--max-model-len", "2048"],
    env: { HF_HUB_CACHE: cache, HF_ENDPOINT: hub.url, HOME: root },
  });
  client = new Ollama({ host: server.ollamaUrl! });
});
afterEach(() => server.settled());
afterAll(async () => {
  await server.stop();
  await hub.stop();
  rmSync(root, { recursive: true });
});

const names = async () => (await client.list()).models.map((model) => model.name);
const options = { num_predict: 2, temperature: 0 };
const ask = (model: string) =>
  client.chat({ model, messages: [{ role: "user", content: "Hi" }], options });
const failure = (answer: Promise<unknown>) =>
  answer.then(
    () => undefined,
    ({ status_code, error, message }) => [status_code, error ?? message],
  );

test("--ollama-port is a second port, for all APIs", async () => {
  expect(server.ollamaUrl).not.toBe(server.url);
  expect(await client.version()).toEqual({ version: expect.stringMatching(/^\d+\.\d+\.\d+$/) });
  for (const url of [server.url, server.ollamaUrl]) {
    expect((await fetch(`${url}/v1/models`)).status).toBe(200);
    expect((await fetch(`${url}/api/version`)).status).toBe(200);
    expect((await fetch(`${url}/`, { method: "HEAD" })).status).toBe(200);
    // Other sites' pages are refused there too.
    const foreign = { headers: { origin: "https://evil.example" } };
    expect((await fetch(`${url}/api/version`, foreign)).status).toBe(403);
  }
});

describe("models", () => {
  test("are listed with their sizes and kinds", async () => {
    const tags = OllamaTags.strict().parse(await (await server.get("/api/tags")).json());
    expect(tags.models).toEqual([
      {
        name: "tiny",
        model: "tiny",
        size: expect.any(Number),
        digest: expect.stringMatching(/^[0-9a-f]{64}$/),
        details: {
          parent_model: "",
          format: "safetensors",
          family: "llama",
          families: ["llama"],
          parameter_size: "82240",
          quantization_level: "F32",
        },
        modified_at: expect.stringMatching(/Z$/),
      },
    ]);
    expect(tags.models[0]!.size).toBeGreaterThan(4 * 82240);
  });

  test("are shown as far as they are loaded", async () => {
    const { models } = OllamaPs.strict().parse(await (await server.get("/api/ps")).json());
    expect(models).toMatchObject([
      { name: "tiny", context_length: 2048, size_vram: 0, expires_at: "9999-12-31T23:59:59Z" },
    ]);
    expect(models[0]!.size).toBeGreaterThan(4 * 82240);
  });

  test("tell what they are and can do, by either name of the field", async () => {
    for (const fields of [{ model: "tiny" }, { name: "tiny" }, { model: "tiny:latest" }]) {
      const response = await server.post("/api/show", fields);
      const body = await response.text();
      expect(OllamaShow.strict().parse(JSON.parse(body))).toMatchObject({
        template: expect.stringContaining("<|im_start|>"),
        model_info: {
          "general.architecture": "llama",
          "general.parameter_count": 82240,
          "llama.context_length": 2048,
        },
        capabilities: ["completion", "tools"],
      });
      expect(body).not.toContain(tmpdir());
    }
  });

  test("are pulled with progress, answer, and are deleted", async () => {
    const seen: ProgressResponse[] = [];
    for await (const line of await client.pull({ model: `hf.co/${name}`, stream: true })) {
      seen.push(line);
      OllamaPullStatus.strict().parse(line);
    }
    expect(seen[0]!.status).toBe("pulling manifest");
    expect(seen.at(-1)).toEqual({ status: "success" } as ProgressResponse);
    const progress = seen.filter(({ digest }) => digest);
    const { total } = progress[0]!;
    expect(progress.at(-1)).toMatchObject({ completed: total, total });
    const completed = progress.map((line) => line.completed);
    expect(completed).toEqual(completed.toSorted((a, b) => a - b));

    expect(await names()).toEqual(["tiny", name]);
    // What it can do is known before it is loaded.
    const shown = await client.show({ model: name });
    expect(shown.capabilities).toEqual(["completion", "tools", "thinking"]);
    expect(shown.model_info).toMatchObject({ "llama.context_length": 4096 });
    expect((await client.ps()).models).toHaveLength(1);
    const { eval_count } = (await ask(name)) as unknown as OllamaChatResponse;
    expect(eval_count).toBe(2);
    expect((await client.ps()).models.map((model) => model.name)).toEqual(["tiny", name]);

    expect(await client.delete({ model: name })).toEqual({ status: "success" });
    expect(await names()).toEqual(["tiny"]);
    expect((await client.ps()).models).toHaveLength(1);
    expect(existsSync(join(cache, "models--org--pulled"))).toBe(false);
    expect(await failure(ask(name))).toEqual([404, expect.stringContaining("model not found")]);
    expect(await failure(client.delete({ model: name }))).toEqual([404, expect.any(String)]);
  });

  test("are pulled by two clients at once", async () => {
    const pulls = [1, 2].map(async () => {
      return await Array.fromAsync(await client.pull({ model: name, stream: true }));
    });
    for (const lines of await Promise.all(pulls)) {
      expect(lines.at(-1)).toEqual({ status: "success" } as ProgressResponse);
    }
    await client.delete({ model: name });
  });

  test("are pulled in few lines, however many pieces they come in", async () => {
    hub.faults.set("model.safetensors", [{ kind: "trickle", pieces: 60, everyMs: 5 }]);
    const startMs = performance.now();
    const lines = await Array.fromAsync(await client.pull({ model: name, stream: true }));
    const progress = lines.filter(({ digest }) => digest);
    expect(progress.length).toBeLessThanOrEqual((performance.now() - startMs) / 100 + 2);
    expect(progress.length).toBeGreaterThan(2);
    await client.delete({ model: name });
  });

  test("are pulled without a stream, and what is here is not pulled again", async () => {
    expect(await client.pull({ model: name })).toEqual({ status: "success" } as ProgressResponse);
    const { bytes } = hub;
    const lines = await Array.fromAsync(await client.pull({ model: name, stream: true }));
    expect(lines.at(-1)!.status).toBe("success");
    expect(hub.requestsOf("model.safetensors").length).toBeGreaterThan(0);
    expect(hub.bytes - bytes).toBeLessThan(5000);
  });

  test("are not deleted while they answer, nor what is not in the cache", async () => {
    const leaving = new AbortController();
    const endless = { model: name, prompt: "Never stop.", max_tokens: 2000, ignore_eos: true };
    const asked = { ...endless, stream: true };
    const answering = await server.post("/v1/completions", asked, { signal: leaving.signal });
    answering.text().catch(() => {});
    expect(await failure(client.delete({ model: name }))).toEqual([
      409,
      "The model cannot be deleted: it is answering requests.",
    ]);
    leaving.abort();
    await server.settled();
    await client.delete({ model: name });
    expect(await failure(client.delete({ model: "tiny" }))).toEqual([404, expect.any(String)]);
    expect(await failure(client.delete({ model: "../x" }))).toEqual([404, expect.any(String)]);
  });

  test("that the hub does not have are refused, streamed or not", async () => {
    for (const stream of [true, false]) {
      const response = await server.post("/api/pull", { model: "org/nothing", stream });
      const body = await response.text();
      expect([response.status, OllamaError.parse(JSON.parse(body)).error]).toEqual([
        502,
        expect.stringContaining("org/nothing"),
      ]);
      expect(body).not.toContain(root);
    }
    for (const model of ["llama3.2", "../x/y", "a/b/c", "org/a:b:c"]) {
      expect(await failure(client.pull({ model }))).toEqual([
        400,
        "Invalid 'model': expected a repo of Hugging Face: org/name.",
      ]);
    }
  });

  test("whose pull is aborted are not there, and the next pull goes on", async () => {
    const held = Promise.withResolvers<void>();
    const fault = { kind: "hold", afterBytes: 100_000, until: held.promise } as const;
    hub.faults.set("model.safetensors", [fault]);
    const leaving = new Ollama({ host: server.url });
    const read = (async () => {
      for await (const line of await leaving.pull({ model: name, stream: true })) {
        if (line.completed >= 100_000) leaving.abort();
      }
    })();
    await expect(read).rejects.toThrow(/abort/i);
    held.resolve();
    expect(await failure(ask(name))).toEqual([404, expect.any(String)]);
    expect(await client.pull({ model: name })).toEqual({ status: "success" } as ProgressResponse);
    const { message } = await ask(name);
    expect(message.role).toBe("assistant");
    await client.delete({ model: name });
  });

  test("whose files are not what the hub lists fail in the middle of the stream", async () => {
    const repo = hub.repos.get(name)!;
    const weights = repo.files["model.safetensors"]!;
    const listed = { oid: "0".repeat(64) };
    hub.add("org/wrong", { files: { ...repo.files, "model.safetensors": { ...weights, listed } } });
    const lines = await client.pull({ model: "org/wrong", stream: true });
    await expect(Array.fromAsync(lines)).rejects.toThrow(/differs from the listing of the hub/);
    expect(await names()).not.toContain("org/wrong");
  });
});

test("a pull that cannot be kept is refused without the machine's paths", async () => {
  const file = join(root, "model", "config.json");
  await using other = await startTestServer({
    env: { HF_HUB_CACHE: join(file, "hub"), HF_ENDPOINT: hub.url, HOME: root },
  });
  const response = await other.post("/api/pull", { model: name, stream: false });
  const { error } = OllamaError.parse(await response.json());
  expect([response.status, error]).toEqual([502, expect.stringContaining("the cache")]);
  expect(error).not.toContain(root);
});

test("a client that leaves before the hub answers is no failure of the server", async () => {
  const asked = Promise.withResolvers<void>();
  const silent = Bun.serve({
    port: 0,
    fetch() {
      asked.resolve();
      return new Promise<Response>(() => {});
    },
  });
  const other = await startTestServer({
    env: { HF_HUB_CACHE: join(root, "none"), HF_ENDPOINT: silent.url.origin, HOME: root },
  });
  const failed = spyOn(other.serving.log, "error").mockImplementation(() => {});
  const seen = Promise.withResolvers<{ status: number }>();
  spyOn(other.serving.log, "info").mockImplementation(seen.resolve);
  const leaving = new AbortController();
  const pull = other.post("/api/pull", { model: name }, { signal: leaving.signal });
  await asked.promise;
  leaving.abort();
  await expect(pull).rejects.toThrow();
  expect((await seen.promise).status).toBe(499);
  expect(failed).not.toHaveBeenCalled();
  await other.stop();
  await silent.stop(true);
});
