// The console in a real browser: the chat, and what keeps it safe.
import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Browser, Page } from "playwright-core";
import type { PsResponse } from "../../src/api/owner/admin.ts";
import type { ConsoleSession } from "../../src/api/owner/console.ts";
import { hasBrowser, openBrowser } from "../support/browser.ts";
import { writeChatModel } from "../support/chat-model.ts";
import { withDialect } from "../support/dialect-model.ts";
import { keyEntry } from "../support/keys.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { settled, useTestServer } from "../support/use-server.ts";
import { type ConsolePage, closeConsoles, openConsole } from "./console-page.ts";

const folder = mkdtempSync(join(tmpdir(), "mlx-serve-console-"));
const hub = join(folder, "hub");
const OTHER = "org/other";

let browser: Browser;
let server: TestServer;
const opened: ConsolePage[] = [];

async function visit(url = server.url): Promise<Page> {
  const one = await openConsole(browser, url);
  opened.push(one);
  return one.page;
}

const send = async (page: Page, text: string) => {
  await page.getByLabel("Message").fill(text);
  await page.keyboard.press("Enter");
};

const set = async (page: Page, values: Readonly<Record<string, string>>) => {
  await page.getByRole("button", { name: "Settings" }).click();
  for (const [label, value] of Object.entries(values)) {
    await page.getByLabel(label, { exact: true }).fill(value);
  }
};

const answers = (page: Page) => page.locator(".answer");
const lastFigures = (page: Page) => answers(page).last().locator(".figures");
/** The answer has ended. */
const ended = (page: Page, count = 1) =>
  page
    .locator(".answer", { has: page.getByRole("button", { name: "Retry" }) })
    .nth(count - 1)
    .waitFor();

beforeAll(async () => {
  if (!hasBrowser) return;
  const repo = join(hub, `models--${OTHER.replace("/", "--")}`);
  mkdirSync(join(repo, "refs"), { recursive: true });
  writeFileSync(join(repo, "refs", "main"), "0".repeat(40));
  writeChatModel(join(repo, "snapshots", "0".repeat(40)), {
    recites: "abcdefg \n",
    // Long enough to be stopped before its end, however slow the machine is.
    maxPositions: 2 ** 16,
  });
  [browser, server] = await Promise.all([
    openBrowser(),
    startTestServer({
      args: "--max-models 2 --kv-memory 32MiB".split(" "),
      env: { HF_HUB_CACHE: hub },
    }),
  ]);
}, 60_000);

afterEach(() => closeConsoles(opened));

afterAll(async () => {
  await Promise.all([browser?.close(), server?.stop()]);
  rmSync(folder, { recursive: true });
});

describe.skipIf(!hasBrowser)("a chat", () => {
  test("streams an answer to its end, with its figures", async () => {
    const page = await visit();
    await set(page, { "Max tokens": "24", Temperature: "0" });
    await send(page, "Hello, a question that is long enough for two whole blocks of tokens");
    await ended(page);
    expect(await lastFigures(page).textContent()).toMatch(
      /^tiny · [\d.]+ tokens\/s · first token .* · 24 tokens · 0\/\d+ prompt tokens cached · cut off/,
    );
    expect(await answers(page).locator(".markdown").textContent()).not.toBe("");
    // The second question finds the first one's blocks.
    await send(page, "And again?");
    await ended(page, 2);
    expect(await lastFigures(page).textContent()).toMatch(/ 64\/\d+ prompt tokens cached/);
  });

  test("needs nothing that browsers keep from plain http of another machine", async () => {
    const page = await visit();
    await page.addInitScript(`
      delete Crypto.prototype.randomUUID;
      delete Navigator.prototype.clipboard;
      Object.defineProperty(globalThis, "isSecureContext", { value: false });
    `);
    await page.reload();
    await set(page, { "Max tokens": "4" });
    await send(page, "Hello");
    await ended(page);
    expect(await page.getByRole("button", { name: "Copy" }).count()).toBe(0);
  });

  test("is stopped", async () => {
    const page = await visit();
    // It never ends by itself.
    await page.getByLabel("Model").selectOption(OTHER);
    await set(page, { Temperature: "0" });
    await send(page, "Hello");
    await page.getByText("abcdefg abcdefg").waitFor();
    await page.getByRole("button", { name: "Stop" }).click();
    await ended(page);
    expect(await lastFigures(page).textContent()).toEndWith("stopped");
    await server.settled();
    expect(
      await server.metric('mlx_serve_requests_total{key="anonymous",tier="NORMAL",outcome="gone"}'),
    ).toBe(1);
  });

  test("keeps every version of a question and an answer, and is still there after a reload", async () => {
    const page = await visit();
    await set(page, { "Max tokens": "4" });
    await send(page, "First");
    await ended(page);
    await page.getByRole("button", { name: "Retry" }).click();
    await page.getByText("2/2").waitFor();
    await ended(page);
    await page.getByRole("button", { name: "Edit" }).click();
    await page.getByLabel("Edit the question").fill("Second");
    await page.getByRole("button", { name: "Send" }).first().click();
    await ended(page);
    expect(await page.locator(".question .versions").textContent()).toContain("2/2");
    // The new question has one answer, and the one before had two.
    expect(await page.locator(".answer .versions").count()).toBe(0);
    await page.locator(".question").getByRole("button", { name: "Earlier version" }).click();
    expect(await page.locator(".bubble").textContent()).toBe("First");
    expect(await page.locator(".answer .versions").textContent()).toContain("2/2");
    await page.getByRole("button", { name: "New chat" }).click();
    await page.getByText("Ask tiny something.").waitFor();
    await page.reload();
    await page.getByRole("button", { name: "First", exact: true }).click();
    expect(await page.locator(".bubble").textContent()).toBe("First");
    await page.getByRole("button", { name: "Delete First" }).click();
    await page.reload();
    expect(await page.getByRole("button", { name: "First", exact: true }).count()).toBe(0);
  });

  test("shows an answer to a schema as JSON, and says what is wrong with a schema", async () => {
    const page = await visit();
    const schema = { type: "object", properties: { n: { type: "integer", maximum: 9 } } };
    await set(page, {
      "JSON schema of the answer": JSON.stringify({ ...schema, required: ["n"] }),
      Temperature: "0",
    });
    await send(page, "A number?");
    await ended(page);
    const shown = (await answers(page).locator("pre").textContent())!;
    expect(JSON.parse(shown)).toEqual({ n: expect.any(Number) });
    expect(shown).toStartWith('{\n  "n": ');
    expect(await answers(page).locator(".name").textContent()).toBe('"n"');
    await page.getByLabel("JSON schema of the answer").fill("{");
    await send(page, "And now?");
    expect(await page.getByRole("alert").textContent()).toStartWith("schema: not valid JSON");
  });

  test("asks two models side by side", async () => {
    const page = await visit();
    await set(page, { "Max tokens": "5", Temperature: "0" });
    await page.getByRole("button", { name: "Side by side" }).click();
    expect(await page.getByLabel("Model 2").inputValue()).toBe(OTHER);
    await send(page, "Hello");
    await ended(page, 2);
    const second = page.getByRole("log", { name: OTHER });
    expect(await second.locator(".markdown").textContent()).toBe("abcde");
    expect(await second.locator(".bubble").textContent()).toBe("Hello");
    expect(await page.getByRole("log", { name: "tiny" }).locator(".bubble").count()).toBe(1);
  });
});

describe.skipIf(!hasBrowser)("what a model says", () => {
  const hacks = [
    "<script>document.title = 'hacked'</script>\n\n",
    "<img src=x onerror=\"document.title = 'hacked'\">\n\n",
    "[a](javascript:document.title='hacked') ",
    "![i](http://127.0.0.1:9/i.png) ",
    "[b](http://127.0.0.1:9/b) <b>bold</b> &lt;b&gt;\n\n",
    '<iframe srcdoc="<script>parent.document.title = 1</script>"></iframe>\n\n',
    "<svg onload=\"document.title = 'hacked'\"></svg> `<code>`\n\n",
    "```html\n<script>document.title = 'hacked'</script>\n```\n\n",
  ];
  const says = [
    ...["I won", "der <i>", "</th", "ink>\n\n", ...hacks],
    ...["<tool", '_call>\n{"name": "get_weather", ', '"arguments": {"city": "<u>Rome</u>"}'],
    ..."}|\n</tool_call>".split("|"),
  ];
  const taught = 'as <tool_call>{"name": <name>, "arguments": <object>}</tool_call> {# </think> #}';
  const model = useTestServer(withDialect({ taught, says }), settled);

  test("stays text, with its thought folded and its call as JSON", async () => {
    const page = await visit(model.url);
    const tool = { name: "get_weather", parameters: { type: "object" } };
    await set(page, { "Tools, as JSON": JSON.stringify(tool), Temperature: "0" });
    await page.getByLabel("Thinking").selectOption("on");
    await send(page, "Hello");
    await ended(page);
    const text = (await answers(page).locator(":scope > .markdown").textContent())!;
    for (const part of [
      "<script>document.title = 'hacked'</script>",
      "<img src=x onerror=\"document.title = 'hacked'\">",
      "[a](javascript:document.title='hacked')",
      "<b>bold</b> <b>",
      "<iframe srcdoc=",
      "<svg onload=",
      "<code>",
    ]) {
      expect(text).toContain(part);
    }
    const made = answers(page).locator("script, img, iframe, svg, b, i, u, object, embed, style");
    expect(await made.count()).toBe(0);
    const links = answers(page).locator("a");
    const addresses = await links.evaluateAll((all) =>
      all.map((each) => each.getAttribute("href")),
    );
    expect(addresses).toEqual(["http://127.0.0.1:9/i.png", "http://127.0.0.1:9/b"]);
    expect(await page.title()).toBe("Chat · mlx-serve");
    const thought = answers(page).locator(".thought");
    expect(await thought.getAttribute("open")).toBeNull();
    expect(await thought.locator(".markdown").textContent()).toBe("I wonder <i>");
    const call = page.getByRole("region", { name: "Call of get_weather" });
    expect(JSON.parse((await call.locator("pre").textContent())!)).toEqual({ city: "<u>Rome</u>" });
    // The result goes to the model.
    await page.getByLabel("Result of get_weather").fill("Sunny");
    await page.getByRole("button", { name: "Send result" }).click();
    await ended(page, 2);
    expect(await page.locator(".result pre").textContent()).toBe("Sunny");
  });
});

describe.skipIf(!hasBrowser)("a server with keys", () => {
  const keyed = useTestServer({ keys: { keys: [keyEntry("alice", "sk-alice")] } }, settled);

  test("asks for one, refuses a wrong one, and keeps the right one out of URLs", async () => {
    const page = await visit(keyed.url);
    const urls: string[] = [];
    page.on("request", (request) => urls.push(request.url()));
    await page.getByLabel("API key").fill("sk-wrong");
    await page.keyboard.press("Enter");
    expect(await page.getByRole("alert").textContent()).toBe("The server rejects this key.");
    await page.getByLabel("API key").fill("sk-alice");
    await page.getByRole("button", { name: "Enter" }).click();
    await set(page, { "Max tokens": "3" });
    await send(page, "Hello");
    await ended(page);
    expect(urls.length).toBeGreaterThan(4);
    expect(urls.filter((url) => url.includes("sk-"))).toEqual([]);
    expect(await page.context().cookies()).toEqual([]);
    await page.reload();
    await page.getByLabel("Message").waitFor();
    await page.getByRole("button", { name: "Forget key" }).click();
    await page.getByLabel("API key").waitFor();
    await page.reload();
    await page.getByLabel("API key").waitFor();
  });
});

test.skipIf(!hasBrowser)("the page says what the server is at", async () => {
  const page = await visit();
  await page.getByLabel("Message").waitFor();
  expect(await page.getByRole("status").textContent()).toBe("");
  const told = (await (await server.get("/console.json")).json()) as ConsoleSession;
  const activity = { kind: "load", model: OTHER, done: 45, total: 100 } as const;
  const json = { ...told, health: { ...told.health, activity } };
  await page.route("**/console.json", (route) => route.fulfill({ json }));
  await page.getByText(`loading ${OTHER} 45%`).waitFor();
});

describe.skipIf(!hasBrowser)("another origin's page", () => {
  test("can neither ask the server nor show the console in a frame", async () => {
    const loaded = async () => ((await (await server.get("/ps")).json()) as PsResponse).models;
    const before = await loaded();
    const html = `<iframe src="${server.url}/"></iframe>`;
    const other = Bun.serve({
      port: 0,
      fetch: () => new Response(html, { headers: { "content-type": "text/html" } }),
    });
    const context = await browser.newContext();
    const page = await context.newPage();
    await page.goto(`http://127.0.0.1:${other.port}/`);
    for (const [path, init] of [
      ["/v1/models", "{}"],
      ["/console.json", "{}"],
      ["/models/unload", `{ method: "POST", mode: "no-cors", body: '{"model":"default"}' }`],
      ["/v1/models", `{ headers: { authorization: "Bearer x" } }`],
    ]) {
      const asked = `fetch("${server.url}${path}", ${init}).then((r) => r.text(), () => "refused")`;
      expect(["refused", ""]).toContain((await page.evaluate(asked)) as string);
    }
    const [frame] = page.frames().slice(1);
    expect(await frame!.evaluate("document.body?.innerText ?? ''").catch(() => "")).not.toContain(
      "Chat",
    );
    expect(await loaded()).toEqual(before);
    await context.close();
    await other.stop(true);
  });
});

test.skipIf(!hasBrowser)(
  "the page is small, strict about its origin, and quick to load",
  async () => {
    const accept = { headers: { accept: "text/html", "accept-encoding": "gzip" } };
    const response = await fetch(`${server.url}/`, accept);
    const policy = response.headers.get("content-security-policy")!;
    expect(policy).toContain("default-src 'none'; script-src 'self'; style-src 'self'");
    expect(policy).not.toContain("unsafe");
    expect(policy).toContain("frame-ancestors 'none'");
    expect(await response.text()).not.toMatch(/<script[^>]*>[^<]|\son\w+=|<style/);
    const page = await visit();
    await page.getByLabel("Message").waitFor();
    const took: unknown = await page.evaluate(`(() => {
    const all = performance.getEntriesByType("resource").concat(performance.getEntriesByType("navigation"));
    return all.filter((each) => /console|\\/$/.test(each.name)).map((each) => each.encodedBodySize);
  })()`);
    const sizes = took as number[];
    expect(sizes).toHaveLength(4);
    const bytes = sizes.reduce((sum, size) => sum + size, 0);
    expect(bytes).toBeGreaterThan(10_000);
    expect(bytes).toBeLessThan(150_000);
  },
);
