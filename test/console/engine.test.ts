// The engine's page in a real browser, beside what /ps and /metrics say.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Browser } from "playwright-core";
import { PsResponse } from "../../src/api/owner/admin.ts";
import { hasBrowser, openBrowser } from "../support/browser.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { openConsole } from "./console-page.ts";

let browser: Browser;
let server: TestServer;

beforeAll(async () => {
  if (!hasBrowser) return;
  [browser, server] = await Promise.all([
    openBrowser(),
    startTestServer({ args: ["--max-batch-size", "4"], recites: "abcdefg \n" }),
  ]);
}, 60_000);

afterAll(() => Promise.all([browser?.close(), server?.stop()]));

const ask = (i: number) =>
  server.post(
    "/v1/chat/completions",
    { messages: [{ role: "user", content: `Request ${i}` }], max_tokens: 4000, temperature: 0 },
    { headers: { "x-request-id": `request-${i}` } },
  );

/** All that can run have had their prompts computed. */
const STEP_OF_FOUR = /^Step \d+ of tiny: 0 prompt tokens and 4 decoded tokens of 4 requests in /;

/** In the page: how many bars of columns were drawn since it was first asked. */
const COLUMNS_DRAWN = `(() => {
  if (window.columns === undefined) {
    window.columns = 0;
    const { fillRect } = CanvasRenderingContext2D.prototype;
    CanvasRenderingContext2D.prototype.fillRect = function (...rectangle) {
      if (rectangle[2] === 4) window.columns += 1;
      fillRect.apply(this, rectangle);
    };
  }
  return window.columns;
})()`;

describe.skipIf(!hasBrowser)("the engine's page", () => {
  test("follows 16 requests, cancels them, and agrees with /ps and /metrics", async () => {
    const { page, context, faults } = await openConsole(browser, server.url);
    await page.getByRole("link", { name: "Engine" }).click();
    const answers = Array.from({ length: 16 }, (_, i) => ask(i));
    const rows = page.getByRole("region", { name: "Requests", exact: true }).locator("tbody tr");
    await rows.nth(15).waitFor();
    await page.getByRole("img", { name: STEP_OF_FOUR }).waitFor();
    const ps = PsResponse.parse(await (await server.get("/ps")).json());
    const count = (state: string) => ps.requests.filter((each) => each.state === state).length;
    expect([count("running"), count("waiting")]).toEqual([4, 12]);
    await page.getByText("4 running").waitFor();
    await page.getByText("12 waiting, 16 admitted").waitFor();
    const [first] = ps.requests;
    const row = rows.filter({ has: page.getByTitle(first!.id, { exact: true }) });
    await row.getByText("running", { exact: true }).waitFor();
    const cells = await row.locator("td").allTextContents();
    expect([cells[2], cells[5]]).toEqual([first!.tier, String(first!.prompt_tokens)]);
    const steps = page.getByRole("region", { name: "Steps", exact: true }).locator("canvas");

    // Each column once: with many requests, all of them with every event would be more than a browser can draw.
    const seen = async () => Number(/\d+/.exec((await steps.getAttribute("aria-label"))!)![0]);
    const columns = () => page.evaluate<number>(COLUMNS_DRAWN);
    const [before, drawn] = [await seen(), await columns()];
    // What the label says of a step is drawn a moment later.
    while ((await seen()) < before + 40 || (await columns()) === drawn) await Bun.sleep(50);
    const after = await columns();
    expect(after - drawn).toBeLessThan(4 * 4 * ((await seen()) - before));

    // One of those that wait, from the queue to its end.
    const waiting = ps.requests.at(-1)!.id;
    await page.getByRole("button", { name: `Follow ${waiting}`, exact: true }).click();
    const story = page.getByRole("region", { name: "The followed request" });
    await story.getByText(/^\+0 ms waiting, \d+ ms old$/).waitFor();
    const others = ps.requests.map(({ id }) => id).filter((id) => id !== waiting);
    for (const id of others) await server.post("/requests/cancel", { id });
    await story.getByText(/computes \d+ tokens of the prompt$/).waitFor();
    await story.getByText(/is its first to decode$/).waitFor();
    await page.getByText("of the followed request").waitFor();
    await page.getByRole("button", { name: `Cancel ${waiting}`, exact: true }).click();
    await story.getByText(/refused \(The server's owner has cancelled the request\.\)/).waitFor();
    expect(new Set((await Promise.all(answers)).map(({ status }) => status))).toEqual(
      new Set([409]),
    );
    await server.settled();
    await page.getByText("No running or waiting requests.").waitFor();
    const generated = await server.metric("mlx_serve_generated_tokens_total");
    await page.getByText(generated.toLocaleString("en"), { exact: true }).waitFor();
    const { blocks } = PsResponse.parse(await (await server.get("/ps")).json()).models[0]!;
    await page.getByText(`${blocks.cached.toLocaleString("en")} cached`).waitFor();
    const ended = page.getByRole("region", { name: "Ended", exact: true }).locator("tbody tr");
    await ended.nth(15).waitFor();
    expect(await ended.count()).toBe(16);
    await context.close();
    expect(faults).toEqual([]);
  }, 60_000);
});
