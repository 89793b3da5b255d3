// The owner's pages in a real browser: models, keys, batches, the benchmark; and all pages for everyone.
import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import axe from "axe-core";
import type { Browser, BrowserContextOptions, Page } from "playwright-core";
import { LoopbackHub } from "../hub/loopback-hub.ts";
import { hasBrowser, openBrowser } from "../support/browser.ts";
import { writeChatModel } from "../support/chat-model.ts";
import { keyEntry } from "../support/keys.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { type ConsolePage, closeConsoles, openConsole } from "./console-page.ts";

const root = mkdtempSync(join(tmpdir(), "mlx-serve-owner-"));
const cache = join(root, "hub");
const REPO = "org/pulled";
const [OWNER, ALICE] = ["sk-owner", "sk-alice"];

let browser: Browser;
let hub: LoopbackHub;
let server: TestServer;
const opened: ConsolePage[] = [];

/** The page of this name, with a key entered. */
async function visit(
  name: string,
  key = OWNER,
  options: BrowserContextOptions = {},
): Promise<Page> {
  const one = await openConsole(browser, server.url, options);
  opened.push(one);
  await one.page.getByLabel("API key").fill(key);
  await one.page.keyboard.press("Enter");
  await one.page.getByRole("link", { name, exact: true }).click();
  return one.page;
}

/** The browser notes every refusal; this one was meant to come. */
function expectRefusal(status: number): void {
  const faults = opened.at(-1)!.faults.splice(0);
  expect(faults).toEqual([expect.stringContaining(`a status of ${status}`)]);
}

beforeAll(async () => {
  if (!hasBrowser) return;
  const folder = join(root, "model");
  writeChatModel(folder);
  hub = await LoopbackHub.start();
  const files = readdirSync(folder).map((file) => {
    const big = file.endsWith(".safetensors");
    return [file, { content: readFileSync(join(folder, file)), big }];
  });
  hub.add(REPO, { files: Object.fromEntries(files) });
  const keys = { keys: [keyEntry("alice", ALICE, { limits: { requests_per_minute: 100 } })] };
  const keysFile = join(root, "keys.json");
  writeFileSync(keysFile, JSON.stringify(keys));
  const sizes = ["--max-models", "2", "--kv-memory", "32MiB"];
  [browser, server] = await Promise.all([
    openBrowser(),
    startTestServer({
      args: [...sizes, "--api-key", OWNER, "--keys-file", keysFile],
      keys,
      env: { HF_HUB_CACHE: cache, HF_ENDPOINT: hub.url },
    }),
  ]);
}, 60_000);

afterEach(() => closeConsoles(opened));

afterAll(async () => {
  await Promise.all([browser?.close(), server?.stop(), hub?.stop()]);
  rmSync(root, { recursive: true });
});

describe.skipIf(!hasBrowser)("the owner's pages", () => {
  test("pull, plan, load, unload and delete a model", async () => {
    const page = await visit("Models");
    await page.getByRole("region", { name: "tiny" }).getByText("loaded", { exact: true }).waitFor();
    await page.getByRole("button", { name: "Pull qwen3:4b", exact: true }).waitFor();
    await page.getByLabel("Repo").fill(REPO);
    await page.getByRole("button", { name: "Pull", exact: true }).click();
    const card = page.getByRole("region", { name: REPO });
    await card.getByText("not loaded", { exact: true }).waitFor();
    expect(await card.textContent()).toContain("safetensors · llama");
    await card.getByRole("button", { name: "Does it fit?" }).click();
    await card.getByText(/^It fits: float32, weights [\d.]+ KB, KV cache/).waitFor();
    await card.getByRole("button", { name: "Load", exact: true }).click();
    await card.getByText("loaded", { exact: true }).waitFor();
    const loaded = async () => {
      const { models } = (await (await server.get("/ps")).json()) as { models: { name: string }[] };
      return models.map(({ name }) => name);
    };
    expect(await loaded()).toEqual(["tiny", REPO]);
    await card.getByRole("button", { name: "Unload" }).click();
    await card.getByText("not loaded", { exact: true }).waitFor();
    expect(await loaded()).toEqual(["tiny"]);
    await card.getByRole("button", { name: `Delete ${REPO}` }).click();
    await card.getByRole("button", { name: "Delete its files" }).click();
    await card.waitFor({ state: "detached" });
    expect(existsSync(join(cache, "models--org--pulled"))).toBe(false);
    // What cannot be pulled is told in the server's words.
    await page.getByLabel("Repo").fill("org/absent");
    await page.getByRole("button", { name: "Pull", exact: true }).click();
    expect(await page.getByRole("alert").textContent()).toStartWith("org/absent: ");
    expectRefusal(502);
  });

  test("show keys with their use, and batches of all of them", async () => {
    const asAlice = { headers: { authorization: `Bearer ${ALICE}` } };
    const body = { prompt: "Hello", max_tokens: 7, ignore_eos: true };
    await server.post("/v1/completions", body, asAlice);
    const form = new FormData();
    const line = { custom_id: "a", method: "POST", url: "/v1/completions", body };
    form.set("purpose", "batch");
    form.set("file", new File([JSON.stringify(line)], "lines.jsonl"));
    const file = await fetch(`${server.url}/v1/files`, { method: "POST", body: form, ...asAlice });
    const { id: input_file_id } = (await file.json()) as { id: string };
    const order = { input_file_id, endpoint: "/v1/completions", completion_window: "24h" };
    const batch = await server.post("/v1/batches", order, asAlice);
    const { id } = (await batch.json()) as { id: string };

    const page = await visit("Keys and batches");
    const row = page
      .getByRole("region", { name: "Keys", exact: true })
      .getByRole("row", { name: /^alice/ });
    await row.getByText("100 requests/min").waitFor();
    const batches = page.getByRole("region", { name: "Batches", exact: true });
    await batches.getByText("completed", { exact: true }).waitFor();
    await batches.getByText(id).waitFor();
    expect(await batches.textContent()).toContain("alice · /v1/completions · 1 of 1");
    const download = page.waitForEvent("download");
    await batches.getByRole("button", { name: `Results of ${id}` }).click();
    const results = readFileSync((await (await download).path())!, "utf8");
    expect(JSON.parse(results)).toMatchObject({ custom_id: "a", response: { status_code: 200 } });
    await server.settled();
    await page.getByRole("cell", { name: "14", exact: true }).waitFor();
    expect((await row.getByRole("cell").allTextContents()).slice(3, 5)).toEqual(["0", "2"]);
  });

  test("make a key, show it once, and revoke it", async () => {
    const page = await visit("Keys and batches");
    const keys = page.getByRole("region", { name: "Keys", exact: true });
    await keys.getByLabel("Name of a new key").fill("carol");
    await keys.getByLabel("Tier").selectOption("LOW");
    await keys.getByLabel("At once").fill("3");
    await keys.getByRole("button", { name: "Add key" }).click();
    const made = page.getByRole("region", { name: "The key of carol" });
    const key = (await made.locator("code").textContent())!;
    const asCarol = { headers: { authorization: `Bearer ${key}` } };
    expect((await server.get("/v1/models", asCarol)).status).toBe(200);
    const row = keys.getByRole("row", { name: /^carol LOW 3 at once/ });
    await row.waitFor();
    await made.getByRole("button", { name: "Close" }).click();
    expect(await page.content()).not.toContain(key);
    await row.getByRole("button", { name: "Revoke carol" }).click();
    await row.getByRole("button", { name: "Revoke carol" }).click();
    await row.waitFor({ state: "detached" });
    expect((await server.get("/v1/models", asCarol)).status).toBe(401);
    await keys.getByLabel("Name of a new key").fill("alice");
    await keys.getByRole("button", { name: "Add key" }).click();
    expect(await page.getByRole("alert").textContent()).toStartWith(
      "A key named alice already exists",
    );
    expectRefusal(409);
  });

  test("measure the server, with progress and a picture", async () => {
    const page = await visit("Bench");
    await page.getByLabel("Requests").fill("2");
    await page.getByLabel("Tokens").fill("4");
    await page.getByRole("button", { name: "Run" }).click();
    const results = page.getByRole("region", { name: "Results", exact: true });
    await results.getByRole("heading", { name: /^speedup: 2 at once are / }).waitFor();
    const rows = await results.locator("tbody tr").allTextContents();
    expect(rows).toEqual([
      expect.stringMatching(/^single1\d/),
      expect.stringMatching(/^batched2\d/),
    ]);
    const plot = results.locator("img");
    const width = await plot.evaluate((image) => (image as unknown as Sized).naturalWidth);
    expect(width).toBe(760);
    await page.getByLabel("Requests").fill("0");
    await page.getByRole("button", { name: "Run" }).click();
    expect(await page.getByRole("alert").textContent()).toContain("requests");
    expectRefusal(400);
  }, 30_000);

  test("are not another key's", async () => {
    const page = await visit("Models", ALICE);
    await page.getByText("This page needs the owner's key; the key in use is alice.").waitFor();
    for (const path of ["/models", "/keys", "/batches", "/engine/events", "/ps"]) {
      const { status } = await server.get(path, { headers: { authorization: `Bearer ${ALICE}` } });
      expect([path, status]).toEqual([path, 403]);
    }
  });
});

type Sized = { naturalWidth: number };

const violations = `axe.run({ resultTypes: ["violations"] }).then(({ violations }) =>
  violations
    .filter(({ impact }) => ["serious", "critical"].includes(impact))
    .map(({ id, nodes }) => id + ": " + nodes.map(({ html }) => html).join("\\n")))`;

describe.skipIf(!hasBrowser)("every page", () => {
  const looks: Record<string, BrowserContextOptions> = {
    light: { colorScheme: "light" },
    "dark, on a phone": { colorScheme: "dark", viewport: { width: 390, height: 844 } },
  };
  for (const [look, options] of Object.entries(looks)) {
    test(`has no serious fault for axe, and fits its width: ${look}`, async () => {
      const page = await visit("Chat", OWNER, options);
      await page.getByRole("button", { name: "Settings" }).click();
      await page.getByLabel("Max tokens").fill("8");
      await page.getByLabel("Message").fill("Hello");
      await page.keyboard.press("Enter");
      await page.getByRole("button", { name: "Retry" }).waitFor();
      // As a script of the page it would be refused.
      await page.evaluate(axe.source);
      const signs: Record<string, string> = {
        Chat: "prompt tokens cached",
        Engine: "No running or waiting requests.",
        Models: "the server was started with it",
        "Keys and batches": "100 requests/min",
        Bench: "The requests run as the owner",
      };
      for (const [name, sign] of Object.entries(signs)) {
        await page.getByRole("link", { name, exact: true }).click();
        await page.getByText(sign).first().waitFor();
        expect([name, await page.evaluate(violations)]).toEqual([name, []]);
        const fits: unknown = await page.evaluate(
          "document.documentElement.scrollWidth <= innerWidth",
        );
        expect([name, fits]).toEqual([name, true]);
      }
    }, 60_000);
  }

  test("asks for a key without a serious fault", async () => {
    const one = await openConsole(browser, server.url);
    opened.push(one);
    await one.page.getByLabel("API key").waitFor();
    await one.page.evaluate(axe.source);
    expect(await one.page.evaluate(violations)).toEqual([]);
  });
});
