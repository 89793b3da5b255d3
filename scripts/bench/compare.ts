// Compares mlx-serve with mlx_lm.server and llama.cpp: the same weights, prompts and threads on this machine,
// interleaved, over HTTP with the code of `mlx-serve bench`. Writes docs/benchmarks.md and its chart:
//
//   npm run -s bench:compare [-- --rounds 3] [-- --requests 8] [-- --max-tokens 32] [-- --threads 2]
//                            [-- --concurrency 1,8] [-- --out <folder>]
//
// The peers are installed from PyPI and npm into the cache on first use.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { basename, join, relative } from "node:path";
import { defaultModelPath } from "../../ffi/native.ts";
import { modes } from "../../src/bench/modes.ts";
import { builtInPrompts } from "../../src/bench/prompts.ts";
import { machine } from "../../src/bench/report.ts";
import { type Pass, resultsOf } from "../../src/bench/results.ts";
import { openServerTarget } from "../../src/bench/server-target.ts";
import { flagOf, readFlags } from "../flags.ts";
import { gpuPartOf, withGpuPart } from "./compare/gpu-page.ts";
import { type Comparison, page, picture } from "./compare/page.ts";
import { type System, startLlamaCpp, startMlxLm, startOurs } from "./compare/systems.ts";

const given = readFlags({
  rounds: 3,
  requests: 8,
  maxTokens: 32,
  threads: availableParallelism(),
  concurrency: "1,2,4,8,16,32",
  out: join(import.meta.dir, "..", "..", "docs"),
});
const { rounds, requests, maxTokens, threads, out } = given;
const levels = given.concurrency.split(",").map(Number);
const start = performance.now();

const systems: System[] = [];
try {
  for (const startSystem of [startOurs, startMlxLm, startLlamaCpp]) {
    systems.push(await startSystem({ threads, batch: Math.max(...levels) }));
    say(`${systems.at(-1)!.name} is there`);
  }
  const measured = await measureAll();
  const comparison: Comparison = {
    date: new Date().toISOString(),
    command: command(),
    machine: machine(),
    bun: Bun.version,
    model: basename(defaultModelPath(), ".gguf"),
    threads,
    requests,
    maxTokens,
    rounds,
    systems: measured,
  };
  mkdirSync(out, { recursive: true });
  const file = join(out, "benchmarks.md");
  // The part about GPUs is measured elsewhere (scripts/bench/gpu-peers.ts).
  const gpu = existsSync(file) ? gpuPartOf(readFileSync(file, "utf8")) : undefined;
  writeFileSync(file, withGpuPart(page(comparison), gpu));
  writeFileSync(join(out, "benchmarks.svg"), picture(comparison));
  say(`written to ${relative(process.cwd(), out) || "."}/benchmarks.md and .svg`);
} finally {
  await Promise.all(systems.map((system) => system.stop()));
}

async function measureAll(): Promise<Comparison["systems"]> {
  const all = [];
  for (const system of systems) {
    const { url, model } = system;
    const target = await openServerTarget({ url, model, chat: false });
    const bench = { target, prompts: builtInPrompts, requests, maxTokens, levels };
    // Excludes one-time work from the measurement.
    await modes.sweep.pass({ ...bench, levels: [Math.max(...levels)], maxTokens: 2 });
    all.push({ system, bench, passes: [] as Pass[] });
    say(`${system.name} is warm`);
  }
  for (let round = 1; round <= rounds; round++) {
    for (const level of levels) {
      for (const { system, bench, passes } of all) {
        const [pass] = await modes.sweep.pass({ ...bench, levels: [level] });
        if (pass!.samples.some(({ tokens }) => tokens !== maxTokens)) {
          throw new Error(`${system.name} has not made ${maxTokens} tokens of every answer`);
        }
        passes.push(pass!);
        const speed = resultsOf([pass!])[0]!.tokens_per_second;
        say(
          `round ${round} of ${rounds}, ${level} at once: ${system.name} ${speed.toFixed(1)} tokens/s`,
        );
      }
    }
  }
  return all.map(({ system: { name, version, weights, rssBytes }, passes }) => {
    return { name, version, weights, rssBytes: rssBytes(), results: resultsOf(passes) };
  });
}

/** The command that regenerates this page. */
function command(): string {
  const { out, positionals, ...others } = given;
  const flags = Object.entries(others).map(([key, value]) => `${flagOf(key)} ${value}`);
  return `npm run -s bench:compare -- ${flags.join(" ")}`;
}

function say(line: string): void {
  const seconds = ((performance.now() - start) / 1000).toFixed(0).padStart(4);
  console.error(`${seconds} s  ${line}`);
}
