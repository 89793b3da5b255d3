import { expect, test } from "bun:test";
import { join } from "node:path";

/** What a process writes to standard error when it logs these two lines. */
async function written(format: "json" | "pretty"): Promise<string[]> {
  const source = join(import.meta.dir, "../src/log.ts");
  const request = { id: "r1", key: "ann", method: "POST", path: "/v1/completions", status: 200 };
  const program = `
    import { makeLogger } from ${JSON.stringify(source)};
    const log = makeLogger({ level: "info", format: "${format}" });
    log.info({ ...${JSON.stringify(request)}, promptTokens: 3, completionTokens: 4, ms: 5 }, "request");
    log.debug("not told");
    log.warn({ model: "m" }, "unloaded");
  `;
  const child = Bun.spawn([process.execPath, "-e", program], { stderr: "pipe" });
  const text = await new Response(child.stderr).text();
  return text.trimEnd().split("\n");
}

test("machines get a line of JSON an event", async () => {
  const lines = (await written("json")).map((line) => JSON.parse(line));
  expect(lines).toMatchObject([
    { msg: "request", id: "r1", key: "ann", status: 200, promptTokens: 3, ms: 5 },
    { msg: "unloaded", model: "m" },
  ]);
  expect(Date.parse(lines[0].time)).toBeGreaterThan(0);
});

test("people get a few words", async () => {
  const [request, unloaded] = await written("pretty");
  expect(request).toEndWith("INFO: POST /v1/completions 200  3+4 tokens  5 ms  by ann");
  expect(unloaded).toEndWith('WARN: unloaded {"model":"m"}');
});
