import { afterAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  type GpuComparison,
  gpuPart,
  gpuPartOf,
  gpuPicture,
  gpuPictureName,
  joined,
  withGpuPart,
} from "../../scripts/bench/compare/gpu-page.ts";
import { against, bestOf, figuresOf } from "../../scripts/bench/gpu/figures.ts";
import type { Report, Result } from "../../scripts/bench/gpu/report.ts";
import { childSystem, parseLoads, vllmKvBytes } from "../../scripts/bench/gpu/systems.ts";

const memory = { weightBytes: 1e9, kvBytesPerToken: 1000, bytesPerSecond: 1e12 };

/** Of requests whose first tokens come at these times, and then one each `stepMs`. */
function arrivals(firsts: readonly number[], stepMs: number, tokens: number): number[][] {
  return firsts.map((first) => Array.from({ length: tokens }, (_, i) => first + i * stepMs));
}

describe("figures", () => {
  const figures = figuresOf(arrivals([10, 20], 5, 11), 100, memory);

  test("prompts are read when the last first token comes", () => {
    expect(figures.firstMaxMs).toBe(20);
    expect(figures.prefill).toBeCloseTo((2 * 100 * 1000) / 20);
  });

  test("a peer is slower by what it takes longer", () => {
    const peer = figuresOf(arrivals([40, 40], 10, 11), 100, memory);
    const ratios = against(figures, peer);
    expect(ratios.fullBatch).toBeCloseTo(2);
    expect(ratios.prefill).toBeCloseTo(2);
    expect(ratios.first).toBeCloseTo(15 / 40);
  });

  test("the best of the rounds has the most prompt tokens a second", () => {
    const slower = figuresOf(arrivals([30, 40], 5, 11), 100, memory);
    expect(bestOf([slower, figures]).prefill).toBe(figures.prefill);
  });
});

describe("loads", () => {
  test("may name their prompt and their new tokens", () => {
    expect(parseLoads("1,64x1024,8x32768x32", 128, 256)).toEqual([
      { requests: 1, prompt: 128, new: 256 },
      { requests: 64, prompt: 1024, new: 256 },
      { requests: 8, prompt: 32_768, new: 32 },
    ]);
  });

  test.each(["", "0", "1xmany", "1x2x3x4", "1.5"])("%p is none", (text) => {
    expect(() => parseLoads(text, 128, 256)).toThrow("expected a load");
  });

  test("decide what vLLM keeps of keys and values, and of states", () => {
    const info = { kvBytes: 32_000_000, blocks: 1000, slots: undefined };
    const perToken = vllmKvBytes(info, parseLoads("1x1000x24", 0, 0)) - 2 ** 30;
    const more = vllmKvBytes(info, parseLoads("1x1000x24,10x1000x24", 0, 0)) - 2 ** 30;
    expect(more / perToken).toBeCloseTo(10, 3);
    const slots = { bytes: 1e6, gauges: new SharedArrayBuffer(0) };
    const states = vllmKvBytes({ ...info, slots }, parseLoads("1x1000x24", 0, 0)) - 2 ** 30;
    expect(states - perToken).toBeGreaterThan(1e6);
  });
});

describe("a program that is asked for loads", () => {
  const folder = mkdtempSync(join(tmpdir(), "gpu-peers-"));
  afterAll(() => rmSync(folder, { recursive: true }));
  const program = join(folder, "stand-in.ts");
  // As vllm-engine.py does, without vLLM.
  writeFileSync(
    program,
    `console.log(JSON.stringify({ version: "0.24.0" }));
for await (const line of console) {
  if (!line) continue;
  const { requests, new: tokens, vocabulary } = JSON.parse(line);
  const times = Array.from({ length: tokens }, (_, i) => vocabulary + i);
  const answer = requests > 4 ? { error: "out of memory" } : { arrivals: Array(requests).fill(times) };
  console.log(JSON.stringify(answer));
}`,
  );

  test("says its version, arrivals and errors", async () => {
    const command = [process.execPath, program];
    const system = await childSystem("vllm", command, { vocabulary: 7 });
    expect(system.name).toBe("vllm");
    expect(system.version).toBe("0.24.0");
    expect(await system.measure({ requests: 2, prompt: 3, new: 2 })).toEqual([
      [7, 8],
      [7, 8],
    ]);
    await expect(system.measure({ requests: 5, prompt: 3, new: 2 })).rejects.toThrow(
      "out of memory",
    );
    await system.stop();
  });
});

describe("the part of the page about GPUs", () => {
  const own = figuresOf(arrivals([10, 10], 5, 11), 100, memory);
  const peer = figuresOf(arrivals([20, 20], 10, 11), 100, memory);
  const load = { requests: 2, prompt: 1024, new: 11 };
  const results: Result[] = [
    {
      ...load,
      system: "mlx-serve",
      best: own,
      rounds: [own],
      against: { vllm: against(own, peer) },
    },
    { ...load, system: "mlx-lm", rounds: [], error: "out of memory", against: {} },
    { ...load, system: "vllm", best: peer, rounds: [peer], against: {} },
  ];
  const report: Report = {
    model: "folder",
    device: "A GPU",
    mlxVersion: "0.32.4",
    dtype: "bfloat16",
    tokenBudget: undefined,
    memory,
    versions: { "mlx-lm": "0.32.2", vllm: "0.24.0" },
    results,
    prefillGap: [],
  };
  const run = { title: "Qwen3-0.6B in bfloat16", report };
  const comparison: GpuComparison = {
    date: "2026-11-17T10:00:00.000Z",
    settings: { models: "qwen3-0.6b", peers: "mlx-lm,vllm", loads: "2", new: "11", rounds: "2" },
    runs: [run],
  };

  test("has every system's figures, the ratios, and a dash where one failed", () => {
    const text = gpuPart(comparison);
    expect(text).toContain(
      "| load | mlx-serve | mlx-lm | mlx-serve / mlx-lm | vllm | mlx-serve / vllm |",
    );
    expect(text).toContain("| 2 x 1,024 + 11 | 400 | - | - | 200 | 2.00x |");
    expect(text).toContain("| 2 x 1,024 + 11 | 10 (20,000) | - | - | 20 (10,000) | 2.00x |");
    expect(text).toContain("| 2 x 1,024 + 11 | 10 | 0.20 | - | - | 20 | 0.10 |");
  });

  test("of one new token has only prompts", () => {
    const only = figuresOf(arrivals([10, 10], 5, 1), 100, memory);
    expect(only.decode).toBe(0);
    expect(against(only, only)).toEqual({ prefill: 1, first: 1 });
    const one = { ...load, new: 1, system: "mlx-serve", best: only, rounds: [only], against: {} };
    const text = gpuPart({
      ...comparison,
      runs: [{ ...run, report: { ...report, results: [one] } }],
    });
    const rows = text.split("\n").filter((line) => line.startsWith("| 2 x 1,024 + 1 |"));
    expect(rows).toEqual(["| 2 x 1,024 + 1 | 10 (20,000) |", "| 2 x 1,024 + 1 | 10 | - |"]);
  });

  test("tells date, device, versions and command", () => {
    const text = gpuPart(comparison);
    expect(text).toContain("Written on 2026-11-17 by `npm run -s bench:gpu-peers -- --models");
    expect(text).toContain("--new 11 --rounds 2`, on A GPU");
    expect(text).toContain("mlx-lm 0.32.2 and vllm 0.24.0");
    expect(text).toContain("(benchmarks-qwen3-0.6b-in-bfloat16.svg)");
    expect(gpuPictureName(run)).toBe("benchmarks-qwen3-0.6b-in-bfloat16.svg");
  });

  test("has a picture with a line for each system that was measured", () => {
    const svg = gpuPicture(run, comparison.settings);
    expect(svg).toContain("mlx-serve  400");
    expect(svg).toContain("vllm  200");
    expect(svg).not.toContain("mlx-lm");
  });

  test("has a picture of the loads that differ only in how many run at once, whichever come first", () => {
    const prompt = { ...results[0]!, requests: 1, prompt: 8192, new: 1 };
    const more = results.map((result) => ({ ...result, requests: 4 }));
    const all = { ...report, results: [prompt, ...results, ...more] };
    const svg = gpuPicture({ ...run, report: all }, comparison.settings);
    expect(svg).toContain("prompts of 1024 tokens");
    expect(svg).toContain("mlx-serve  400");
  });

  test("is of several runs, by model and load", () => {
    const longer = results.map((result) => ({ ...result, requests: 4 }));
    const others: GpuComparison = {
      ...comparison,
      settings: { ...comparison.settings, models: "qwen3-0.6b,llama-3.2-3b", loads: "4" },
      runs: [
        { ...run, report: { ...report, results: longer } },
        { ...run, title: "Llama-3.2-3B in bfloat16" },
      ],
    };
    const both = joined([comparison, others]);
    expect(both.settings.models).toBe("qwen3-0.6b,llama-3.2-3b");
    expect(both.settings.loads).toBe("2,4");
    expect(both.runs.map(({ report }) => report.results.length)).toEqual([6, 3]);
  });

  test("is replaced, and kept when the rest is written again", () => {
    const page = withGpuPart("# Benchmarks\nof CPUs\n", gpuPart(comparison));
    const again = withGpuPart(page, "## On a GPU\nnew\n");
    expect(again).toBe("# Benchmarks\nof CPUs\n\n## On a GPU\nnew\n");
    expect(withGpuPart("# Other\n", gpuPartOf(again))).toBe("# Other\n\n## On a GPU\nnew\n");
    expect(withGpuPart("# Other\n", gpuPartOf("# Benchmarks\n"))).toBe("# Other\n");
  });
});
