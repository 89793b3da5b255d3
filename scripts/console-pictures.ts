// Takes the screenshots of the console for the docs: `npm run -s docs:console`. A server with the default model
// answers a chat and a crowd of requests while Chromium captures its pages.
import { statSync } from "node:fs";
import { join, relative } from "node:path";
import type { Browser, BrowserContextOptions, Page } from "playwright-core";
import { defaultModelPath } from "../ffi/native.ts";
import { openBrowser } from "../test/support/browser.ts";
import { startTestServer, type TestServer } from "../test/support/server.ts";

const docs = join(import.meta.dir, "..", "docs");
/** Maximum size, since the pictures are in the repository. */
const MAX_BYTES = 180_000;
const PATIENCE_MS = 120_000;
/** Time for the page to fill. */
const CROWD_MS = 18_000;

const desktop = { viewport: { width: 1200, height: 860 } };
const tall = { viewport: { width: 1080, height: 1160 } };
const phone = { viewport: { width: 390, height: 844 }, isMobile: true };

const topics = [
  "tides",
  "bread",
  "bees",
  "glass",
  "maps",
  "salt",
  "kites",
  "clocks",
  "rain",
  "ink",
];
const system =
  "You are a patient teacher. You explain one thing at a time, in short sentences, with an example from daily life.";

const server = await startTestServer({
  model: defaultModelPath(),
  args: ["--served-model-name", "SmolLM2-135M", "--max-batch-size", "6", "--kv-memory", "512MiB"],
});
const browser = await openBrowser();
try {
  await takeChat("console-chat.png", { ...desktop, colorScheme: "light" });
  await takeChat("console-phone.png", { ...phone, colorScheme: "dark" });
  await takeEngine({
    "console-engine.png": "light",
    "console-engine-dark.png": "dark",
  });
} finally {
  await browser.close();
  await server.stop();
}

async function takeChat(file: string, options: BrowserContextOptions): Promise<void> {
  const page = await open(browser, server, "chat", options);
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Temperature").fill("0");
  await page.getByLabel("Max tokens").fill("160");
  await page.getByRole("button", { name: "Settings" }).click();
  await ask(page, "What is the capital of France?");
  await ask(page, "Write a Python function that adds two numbers.");
  await take(page, file);
}

async function ask(page: Page, question: string): Promise<void> {
  const answers = page.getByRole("button", { name: "Retry" });
  const before = await answers.count();
  await page.getByLabel("Message").fill(question);
  await page.keyboard.press("Enter");
  await answers.nth(before).waitFor();
}

/** Captures one crowd in both color schemes; in the second, a request is followed. */
async function takeEngine(files: Record<string, "light" | "dark">): Promise<void> {
  const pages = await Promise.all(
    Object.values(files).map((colorScheme) =>
      open(browser, server, "engine", { ...tall, colorScheme }),
    ),
  );
  const crowd = new Crowd();
  await Bun.sleep(CROWD_MS);
  const [first, second] = Object.keys(files) as [string, string];
  await take(pages[0]!, first);
  // The last waiting request, followed from the queue on.
  await pages[1]!
    .getByRole("button", { name: /^Follow/ })
    .last()
    .click();
  await pages[1]!.getByText("is its first to decode").waitFor();
  await pages[1]!.mouse.move(0, 0);
  await Bun.sleep(1500);
  await take(pages[1]!, second);
  await crowd.leave();
}

/** Concurrent clients that send one request after the other. */
class Crowd {
  #next = 0;
  #hasLeft = false;
  readonly #clients = Array.from({ length: 9 }, () => this.#ask());

  async #ask(): Promise<void> {
    while (!this.#hasLeft) {
      const i = this.#next++;
      const topic = topics[i % topics.length]!;
      const length = (i * 7) % 10;
      const question = `Explain ${topic} to a child. ${"Say why, and how. ".repeat(3 * length)}`;
      await send(i, question, 40 + 6 * length);
    }
  }

  async leave(): Promise<void> {
    this.#hasLeft = true;
    for (let i = 0; i < this.#next; i++) await server.post("/requests/cancel", { id: idOf(i) });
    await Promise.all(this.#clients);
  }
}

function idOf(i: number): string {
  return `request-${String(i).padStart(2, "0")}`;
}

async function send(i: number, question: string, maxTokens: number): Promise<void> {
  const messages = [
    { role: "system", content: system },
    { role: "user", content: question },
  ];
  const body = { messages, max_tokens: maxTokens, ignore_eos: true };
  const response = await server.post("/v1/chat/completions", body, {
    headers: { "x-request-id": idOf(i) },
  });
  await response.text();
}

async function open(
  from: Browser,
  { url }: TestServer,
  name: string,
  options: BrowserContextOptions,
): Promise<Page> {
  const context = await from.newContext(options);
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  await page.goto(`${url}/#${name}`);
  return page;
}

async function take(page: Page, file: string): Promise<void> {
  const path = join(docs, file);
  await page.screenshot({ path });
  const { size } = statSync(path);
  console.log(`${relative(process.cwd(), path)} ${(size / 1000).toFixed(0)} KB`);
  if (size > MAX_BYTES) throw new Error(`${file} is larger than ${MAX_BYTES} bytes`);
}
