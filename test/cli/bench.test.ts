import { afterAll, afterEach, beforeAll, expect, spyOn, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { modes } from "../../src/bench/modes.ts";
import { bench } from "../../src/cli/bench.ts";
import { verbs } from "../../src/cli/verbs.ts";
import { writeChatModel } from "../support/chat-model.ts";
import { startTestServer } from "../support/server.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const root = temporaryFolder();
const model = join(root, "tiny");
const log = spyOn(console, "log").mockImplementation(() => {});
beforeAll(() => writeChatModel(model, { maxPositions: 16_384 }));
afterEach(() => log.mockClear());
afterAll(() => log.mockRestore());

const tiny = ["--requests", "2", "--max-tokens", "4", "--repeat", "1", "--warmup", "0"];
const own = [...tiny, "--model", model];
const said = () => log.mock.calls.join("\n");

test("bench compare prints the speedup, and writes all of it down", async () => {
  const [json, plot] = [join(root, "compare.json"), join(root, "compare.svg")];
  await bench(["compare", ...own, "--repeat", "2", "--json", json, "--plot", plot]);
  expect(said()).toMatch(/^mlx-serve, tiny\n/);
  expect(said()).toMatch(/speedup: 2 at once are [\d.]+ times as fast as one after the other$/);
  const report = JSON.parse(readFileSync(json, "utf8"));
  expect(report).toMatchObject({
    command: expect.stringContaining("mlx-serve bench compare --requests 2"),
    machine: { cores: expect.any(Number), backend: expect.any(String) },
    versions: { mlx: expect.any(String) },
    target: { kind: "engine", model: "tiny" },
    settings: { mode: "compare", max_tokens: 4, repeat: 2 },
    results: [{ mode: "single" }, { mode: "batched", speedup: expect.any(Number) }],
  });
  for (const result of report.results) {
    expect(result).toMatchObject({
      num_requests: 2,
      total_tokens: 8,
      total_time_seconds: expect.any(Number),
      tokens_per_second: expect.any(Number),
      avg_latency_ms: expect.any(Number),
      p50_latency_ms: expect.any(Number),
      p99_latency_ms: expect.any(Number),
      active_bytes: expect.any(Number),
    });
  }
  expect(readFileSync(plot, "utf8")).toStartWith("<svg ");
}, 60_000);

test("bench compare fails below --min-speedup, after all was told", async () => {
  const slow = bench(["compare", ...own, "--min-speedup", "1000"]);
  await expect(slow).rejects.toThrow(/^the speedup is [\d.]+, below the minimum of 1000$/);
  expect(said()).toContain("speedup: ");
  await bench(["compare", ...own, "--min-speedup", "0.001"]);
}, 60_000);

test("every mode measures the engine", async () => {
  const modesSeen: string[] = [];
  for (const mode of ["single", "batched", "sweep", "prefix", "mixed", "priority"]) {
    const json = join(root, `${mode}.json`);
    const levels = mode === "sweep" ? ["--concurrency", "1,3"] : [];
    await bench([mode, ...own, ...levels, "--json", json, "--plot", join(root, "plot.svg")]);
    const { results, settings } = JSON.parse(readFileSync(json, "utf8"));
    // Those of high priority find all places taken.
    expect(settings.max_batch_size).toBe(mode === "priority" ? 1 : 32);
    for (const result of results) {
      modesSeen.push(`${result.mode} ${result.concurrency}`);
      expect(result.total_tokens).toBe(4 * result.num_requests);
    }
    if (mode === "prefix") {
      expect(results[0].cached_tokens).toBe(0);
      expect(results[1].cached_tokens).toBeGreaterThan(results[1].prompt_tokens * 0.8);
    }
    if (mode === "sweep") {
      expect(readFileSync(join(root, "plot.svg"), "utf8")).toContain("<polyline");
    }
  }
  expect(modesSeen).toEqual([
    "single 1",
    "batched 2",
    "sweep 1",
    "sweep 3",
    "prefix_cold 1",
    "prefix_warm 1",
    "mixed_alone 2",
    "mixed_busy 2",
    "mixed_long 1",
    "priority_low 2",
    "priority_high 1",
  ]);
}, 60_000);

test("bench measures a server, and keeps its key to itself", async () => {
  const server = await startTestServer({ args: ["--api-key", "sk-bench"] });
  const [json, prompts] = [join(root, "server.json"), join(root, "prompts.txt")];
  writeFileSync(prompts, "one\ntwo\n");
  const flags = ["--url", server.url, "--api-key", "sk-bench", "--slo-ttft", "60000"];
  await bench(["batched", ...tiny, ...flags, "--chat", "--prompt-file", prompts, "--json", json]);
  await server.settled();
  await server.stop();
  const text = readFileSync(json, "utf8");
  expect(text).not.toContain("sk-bench");
  expect(JSON.parse(text)).toMatchObject({
    target: { kind: "server", url: server.url, server: expect.stringContaining("mlx-serve") },
    settings: { chat: true, slo_ttft_ms: 60_000 },
    results: [
      { num_requests: 2, total_tokens: 8, goodput_requests_per_second: expect.any(Number) },
    ],
  });
  expect(said()).toContain("GOOD/S");
}, 60_000);

test("bench refuses what it does not understand, and flags without effect", async () => {
  const wrong: [string, RegExp][] = [
    ["dance", /^bench takes one mode of single, batched, /],
    ["single batched", /^bench takes one mode/],
    ["--requests 0", /^--requests: expected a whole number from 1 on, not 0$/],
    ["--repeat 1.5", /^--repeat: /],
    ["sweep --concurrency 1,x", /^--concurrency: /],
    ["compare --concurrency 4", /^--concurrency: only a sweep/],
    ["single --min-speedup 2", /^--min-speedup: single has no speedup$/],
    ["--min-speedup fast", /^--min-speedup: expected a number above 0/],
    ["--slo-ttft -1", /slo-ttft/],
    ["--api-key sk-1", /^--api-key: only a server/],
    ["--url http://localhost --max-batch-size 4", /^--max-batch-size: /],
    ["--url localhost:8080", /^--url: expected http/],
    ["--prompt-file /absent", /^\/absent: /],
    ["--frobnicate", /frobnicate/],
  ];
  for (const [line, message] of wrong) {
    await expect(bench(line.split(" "))).rejects.toThrow(message);
  }
  expect(log).not.toHaveBeenCalled();
});

test("the command line knows every mode", () => {
  const { values } = verbs.find(({ name }) => name === "bench")!;
  expect(values).toEqual(Object.keys(modes));
});
