import { expect, test } from "bun:test";
import { join } from "node:path";

type Event = [fields: object, message: string, level?: "debug" | "warn"];

/** What a process writes to standard error when it logs these events. */
async function logged(format: "json" | "pretty", events: readonly Event[]): Promise<string[]> {
  const source = join(import.meta.dir, "../src/log.ts");
  const program = `
    import { makeLogger } from ${JSON.stringify(source)};
    const log = makeLogger({ level: "info", format: "${format}" });
    for (const [fields, message, level = "info"] of ${JSON.stringify(events)}) {
      log[level](fields, message);
    }
  `;
  const child = Bun.spawn([process.execPath, "-e", program], { stderr: "pipe" });
  const text = await new Response(child.stderr).text();
  return text.trimEnd().split("\n");
}

const request = { id: "r1", key: "ann", method: "POST", path: "/v1/completions", status: 200 };
const events: Event[] = [
  [{ ...request, promptTokens: 3, completionTokens: 4, ms: 5 }, "request"],
  [{}, "not told", "debug"],
  [{ model: "m" }, "unloaded", "warn"],
];

test("machines get a line of JSON an event", async () => {
  const lines = (await logged("json", events)).map((line) => JSON.parse(line));
  expect(lines).toMatchObject([
    { msg: "request", id: "r1", key: "ann", status: 200, promptTokens: 3, ms: 5 },
    { msg: "unloaded", model: "m" },
  ]);
  expect(Date.parse(lines[0].time)).toBeGreaterThan(0);
});

test("people get a few words", async () => {
  const [request, unloaded] = await logged("pretty", events);
  expect(request).toEndWith("INFO: POST /v1/completions 200  3+4 tokens  5 ms  by ann");
  expect(unloaded).toEndWith('WARN: unloaded {"model":"m"}');
});

test("a text from outside stays on its line, without controls", async () => {
  const text = "x\nFAKE \x1b[31m\u009b\u2028\u202e\ud800";
  const texts = { method: text, path: text, status: text, key: text, error: text };
  const request = { ...texts, prompt: [text] };
  const lines = await logged("pretty", [
    [request, "request"],
    [{ [text]: text, err: { message: text, stack: text } }, text],
  ]);
  expect(lines.length).toBe(2);
  for (const line of lines) {
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
    expect(line).not.toMatch(/[\x00-\x1f\x7f-\x9f\u2028\u202e\ufffd]/);
    expect(line).toContain("x\\nFAKE \\u001b[31m\\u009b\\u2028\\u202e\\ud800");
  }
  const objects = await logged("json", [[request, "request"]]);
  expect(objects.map((line) => JSON.parse(line))).toMatchObject([request]);
});
