// A page of the console in a browser, and everything that it complains about.
import { expect } from "bun:test";
import type { Browser, BrowserContext, BrowserContextOptions, Page } from "playwright-core";

export type ConsolePage = {
  page: Page;
  context: BrowserContext;
  /** Errors in the browser's console, exceptions, failed requests, and requests to anywhere else. */
  faults: string[];
};

/** What waits takes less; a machine with much else to do takes longer. */
const PATIENCE_MS = 15_000;

export async function openConsole(
  browser: Browser,
  url: string,
  options: BrowserContextOptions = {},
): Promise<ConsolePage> {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  const faults: string[] = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) faults.push(message.text());
  });
  page.on("pageerror", (error) => faults.push(String(error)));
  page.on("request", (request) => {
    const isOwn = request.url().startsWith(`${url}/`) || request.url().startsWith("data:");
    if (!isOwn) faults.push(`a request to ${request.url()}`);
  });
  page.on("requestfailed", (request) => {
    // A stream that the page stops ends this way.
    const reason = request.failure()?.errorText;
    if (reason !== "net::ERR_ABORTED") faults.push(`${request.url()}: ${reason}`);
  });
  await page.goto(`${url}/`);
  return { page, context, faults };
}

/** Closes all of them, of which none has complained. */
export async function closeConsoles(opened: ConsolePage[]): Promise<void> {
  const closed = opened.splice(0);
  const faults = closed.flatMap((each) => each.faults);
  await Promise.all(closed.map(({ context }) => context.close()));
  expect(faults).toEqual([]);
}
