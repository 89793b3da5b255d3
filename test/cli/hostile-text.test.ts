// Names, metadata and answers that would write lines of their own or command the terminal.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { LoopbackHub } from "../hub/loopback-hub.ts";
import { gguf, json, safetensors } from "../hub/small-models.ts";
import { type Home, makeHome, mlxServe } from "../support/serve-process.ts";

const hostile = "x\nFAKE \x1b[31m\x07\u009b2J\u202e\u2028\ry";
/** How it is shown. */
const shown = "x\\nFAKE \\u001b[31m\\u0007\\u009b2J\\u202e\\u2028\\ry";

let home: Home;
beforeAll(() => {
  home = makeHome();
});
afterAll(() => home.remove());

/** What a verb prints, which is all on lines of its own and has no control in it. */
async function printed(args: string[], env: Record<string, string> = {}): Promise<string> {
  const { stdout, stderr } = await mlxServe(args, { ...home.env, ...env });
  expectHarmless(stdout + stderr);
  return stdout + stderr;
}

function expectHarmless(text: string): void {
  expect(text.split("\n").filter((line) => line.startsWith("FAKE"))).toEqual([]);
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  expect(text.match(/[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]/g)).toBeNull();
}

function folder(files: Record<string, Buffer>): string {
  const path = mkdtempSync(join(home.env.HOME!, "model-"));
  for (const [name, content] of Object.entries(files)) writeFileSync(join(path, name), content);
  return path;
}

const weights = safetensors({ "a.weight": { dtype: "F32", shape: [1], bytes: 4 } });

test("show prints the names and metadata of files escaped", async () => {
  const config = { model_type: hostile, quantization_config: { quant_method: hostile } };
  const path = folder({ "config.json": json(config), "model.safetensors": weights });
  writeFileSync(join(path, `${hostile}.txt`), "");
  const text = await printed(["show", path]);
  expect(text).toContain(`architecture  ${shown}\n`);
  expect(text).toContain(`quantization  ${shown}\n`);
  expect(text).toContain(`  ${shown}.txt `);
  // Behind it stands that it does not load.
  const [description] = (await printed(["show", path, "--json"])).split("\nmlx-serve: ");
  expect(JSON.parse(description!)).toMatchObject({ architecture: hostile, quantization: hostile });

  const file = join(folder({ "a.gguf": gguf({ "general.architecture": hostile }) }), "a.gguf");
  expect(await printed(["show", file])).toContain(`architecture  ${shown}\n`);
});

test("errors about files print names escaped", async () => {
  const tensors = { [hostile]: { dtype: "F32", shape: [2], bytes: 4 } };
  const path = folder({
    "config.json": json({ model_type: "llama" }),
    "model.safetensors": safetensors(tensors),
  });
  expect(await printed(["show", path])).toMatch(/^mlx-serve: .*FAKE/);
  expect(await printed(["show", `./${hostile}`])).toMatch(/^mlx-serve: .*FAKE/);
});

test("ls prints the names in a cache escaped", async () => {
  const cache = mkdtempSync(join(home.env.HOME!, "hub-"));
  const repo = join(cache, "models--org--tiny");
  const commit = "a".repeat(40);
  for (const [file, content] of [
    [join(repo, "snapshots", commit, "model.safetensors"), "x"],
    [join(repo, "refs", hostile), commit],
  ] as const) {
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, content);
  }
  const rows = JSON.parse(await printed(["ls", "--json"], { HF_HUB_CACHE: cache }));
  expect(rows.at(-1).revisions).toEqual([{ commit, refs: [hostile] }]);
});

test("pull prints what a hub says escaped", async () => {
  const hub = await LoopbackHub.start();
  const files = Object.fromEntries(
    ["a", "b"].map((name) => [`${hostile}-${name}.gguf`, { content: Buffer.from(name) }]),
  );
  hub.add("org/tiny", { files });
  const env = { HF_ENDPOINT: hub.url, HF_HUB_CACHE: join(home.env.HOME!, "pulled") };
  expect(await printed(["pull", "org/tiny"], env)).toContain(`${shown}-a.gguf, ${shown}-b.gguf`);
  await hub.stop();
});

/** A server that speaks as mlx-serve does, with hostile words. */
function hostileServer() {
  const model = { id: hostile, object: "model", created: 1, owned_by: hostile, max_model_len: 8 };
  const delta = { role: "assistant", content: `${hostile}\tz` };
  const common = { id: "1", created: 1, model: hostile, system_fingerprint: hostile };
  const choice = { index: 0, delta, logprobs: null, finish_reason: null, token_ids: [1] };
  const usage = {
    ...{ prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
    prompt_tokens_details: { cached_tokens: 0 },
  };
  const events = [
    { ...common, object: "chat.completion.chunk", choices: [choice], usage },
    "[DONE]",
  ].map((event) => `data: ${typeof event === "string" ? event : JSON.stringify(event)}\n\n`);
  return Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    routes: {
      "/health": () => Response.json({ status: "ok", reason: hostile }),
      "/v1/models": () => Response.json({ object: "list", data: [model] }),
      "/v1/chat/completions": () => new Response(events.join("")),
      "/ps": () => {
        const error = { message: hostile, type: hostile, param: null, code: null };
        return Response.json({ error }, { status: 500 });
      },
    },
  });
}

test("ps, bench and run print what a server says escaped", async () => {
  const server = hostileServer();
  const url = server.url.origin;
  expect(await printed(["ps", "--url", url])).toMatch(/^mlx-serve: .*FAKE/);
  const few = ["--requests", "1", "--repeat", "1", "--warmup", "0"];
  const bench = await printed(["bench", "single", "--chat", "--url", url, ...few]);
  expect(bench).toContain(`${shown}, ${shown}\n`);
  const { stderr } = await mlxServe(["run", "--url", url, "default", "Hi"], home.env);
  expectHarmless(stderr);
  expect(stderr).toContain(`${shown}, from the server at ${url}`);
  await server.stop(true);
});

test("run prints an answer escaped on a terminal, and as it is to a program", async () => {
  const server = hostileServer();
  const args = ["run", "--url", server.url.origin, "default", "Hi"];
  const { stdout } = await mlxServe(args, home.env);
  expect(stdout).toBe(`${hostile}\tz\n`);

  const chunks: Uint8Array[] = [];
  const main = join(import.meta.dir, "../../src/main.ts");
  const child = Bun.spawn([process.execPath, main, ...args], {
    env: home.env,
    terminal: { data: (_, bytes) => void chunks.push(bytes.slice()) },
  });
  await child.exited;
  // A terminal ends lines by CR LF.
  const terminal = Buffer.concat(chunks).toString().replaceAll("\r\n", "\n");
  expect(terminal).toContain("x\nFAKE \\u001b[31m\\u0007\\u009b2J\\u202e\\u2028\\ry\tz\n");
  await server.stop(true);
});
