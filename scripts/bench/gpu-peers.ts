// Compares mlx-serve, mlx-lm and vLLM on one GPU, interleaved, with scripts/bench/gpu.ts and several models of random
// weights. Writes a JSON of all results after each model, and the GPU part of docs/benchmarks.md with its charts:
//
//   npm run -s bench:gpu-peers [-- --models qwen3-0.6b,llama-3.2-3b,llama-3.2-3b:4] [-- --peers mlx-lm,vllm]
//     [-- --loads 1,16,64,128,256,64x1024,64x1024x1,1x8192x1,8x32768x32] [-- --new 256] [-- --rounds 2] [-- --json <file>]
//     [-- --python <with mlx-lm>] [-- --vllm-python <with vLLM>] [-- --out <folder>] [-- --from <JSON,JSON>]
//
// A model is a shape of scripts/bench/random-model.ts, with its bits after a colon; vLLM skips quantized ones. With
// --from, nothing is measured: the page is written from the results of earlier runs, possibly on other machines, each
// with some of the models or loads.
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { cacheDirectory } from "../../ffi/native.ts";
import { readFlags } from "../flags.ts";
import {
  type GpuComparison,
  type GpuRun,
  gpuPart,
  gpuPicture,
  gpuPictureName,
  joined,
  withGpuPart,
} from "./compare/gpu-page.ts";
import type { Report } from "./gpu/report.ts";

const bench = join(cacheDirectory(), "bench");
const values = readFlags({
  models: "qwen3-0.6b,llama-3.2-3b,llama-3.2-3b:4",
  peers: "mlx-lm,vllm",
  loads: "1,16,64,128,256,64x1024,64x1024x1,1x8192x1,8x32768x32",
  new: "256",
  rounds: "2",
  json: join(bench, "gpu-peers.json"),
  python: "",
  vllmPython: "",
  out: join(import.meta.dir, "..", "..", "docs"),
  from: "",
});
const titles: Record<string, string> = {
  "qwen3-0.6b": "Qwen3-0.6B",
  "llama-3.2-3b": "Llama-3.2-3B",
};

if (values.from) {
  const files = values.from.split(",");
  writePage(joined(files.map((file) => JSON.parse(readFileSync(file, "utf8")))));
} else writePage(measureAll());

function measureAll(): GpuComparison {
  const { models, peers, loads, new: tokens, rounds } = values;
  const settings = { models, peers, loads, new: tokens, rounds };
  const runs: GpuRun[] = [];
  const comparison: GpuComparison = { date: new Date().toISOString(), settings, runs };
  for (const model of models.split(",")) {
    const [shape, bits] = model.split(":") as [string, string?];
    const title = `${titles[shape] ?? shape} in ${bits ? `${bits} bits` : "bfloat16"}`;
    runs.push({ title, report: measure(modelFolder(shape, bits), bits !== undefined) });
    writeFileSync(values.json, JSON.stringify(comparison, undefined, 2));
    console.error(`${title}: written to ${values.json}`);
  }
  return comparison;
}

function measure(folder: string, quantized: boolean): Report {
  const file = `${values.json}.${process.pid}`;
  const peers = values.peers.split(",").filter((peer) => !(quantized && peer === "vllm"));
  const { python, vllmPython } = values;
  runScript("gpu.ts", [
    folder,
    ...["--requests", values.loads, "--new", values.new, "--rounds", values.rounds],
    ...["--peers", peers.join(",") || "none", "--json", file],
    ...(python ? ["--python", python] : []),
    ...(vllmPython ? ["--vllm-python", vllmPython] : []),
  ]);
  try {
    return JSON.parse(readFileSync(file, "utf8"));
  } finally {
    rmSync(file);
  }
}

/** Created once, since it is slow. */
function modelFolder(shape: string, bits: string | undefined): string {
  const folder = join(bench, `random-${shape}${bits ? `-${bits}bit` : ""}`);
  if (existsSync(folder)) return folder;
  mkdirSync(bench, { recursive: true });
  const partial = `${folder}.${process.pid}`;
  runScript("random-model.ts", [shape, partial, ...(bits ? ["--bits", bits] : [])]);
  renameSync(partial, folder);
  return folder;
}

function runScript(name: string, args: readonly string[]): void {
  const command = [process.execPath, join(import.meta.dir, name), ...args];
  const { exitCode } = Bun.spawnSync(command, { stdio: ["ignore", "inherit", "inherit"] });
  if (exitCode !== 0) throw new Error(`${name} has ended with ${exitCode}`);
}

function writePage(comparison: GpuComparison): void {
  mkdirSync(values.out, { recursive: true });
  const file = join(values.out, "benchmarks.md");
  const page = existsSync(file) ? readFileSync(file, "utf8") : "# Benchmarks\n";
  writeFileSync(file, withGpuPart(page, gpuPart(comparison)));
  for (const run of comparison.runs) {
    writeFileSync(join(values.out, gpuPictureName(run)), gpuPicture(run, comparison.settings));
  }
  console.error(`written to ${relative(process.cwd(), values.out) || "."}/benchmarks.md`);
}
