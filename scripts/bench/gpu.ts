// Compares the engine with mlx-lm's BatchGenerator and vLLM: weights of the same shape, interleaved in one run, with
// prompts of random tokens and greedy decoding to the last token. `bun scripts/bench/gpu.ts <folder of a model>`, and
//
//   --requests 1,5,16,64,128   concurrent; 64x1024 is 64 with prompts of 1024 tokens, 64x1024x16 with 16 new ones
//   --prompt 128 --new 256     tokens per prompt and per answer
//   --rounds 2                 the best of each figure counts
//   --python <path>            a Python with mlx-lm; by default, it is installed from PyPI
//   --vllm-python python3      a Python with vLLM, found via VLLM_PYTHONPATH if set
//   --peers mlx-lm             or vllm, or mlx-lm,vllm, or none
//   --http                     the server over sockets too
//   --scaling                  the engine alone at 1, 2, 4, ..., 256 requests: whether throughput ever falls
//   --prefill-gap              the engine alone: 32 streams during the prefill of 8192 tokens
//   --streams 32 --long 8192   the numbers of streams and tokens for --prefill-gap
//   --keep-unpacked on         or off: the engine's option of that name; automatic by default
//   --token-budget <n>         tokens per step
//   --bandwidth 4800           memory bandwidth in GB/s
//   --json <file>              writes all results, including each round
import { writeFileSync } from "node:fs";
import { basename, resolve } from "node:path";
import { defaultEngineOptions } from "../../src/engine/protocol.ts";
import { readSafetensorsIndex } from "../../src/files/safetensors.ts";
import { BLOCK_TOKENS } from "../../src/kv/blocks.ts";
import { readFlags } from "../flags.ts";
import { mlxLmPython } from "./compare/mlx-lm.ts";
import { against, bestOf, figuresOf, type Memory } from "./gpu/figures.ts";
import { measurePrefillGap } from "./gpu/prefill-gap.ts";
import type { Report, Result } from "./gpu/report.ts";
import {
  absentSystem,
  engineSystem,
  type Load,
  mlxLmSystem,
  mostOf,
  type Own,
  parseLoads,
  type System,
  startEngine,
  vllmSystem,
} from "./gpu/systems.ts";

const values = readFlags(
  {
    requests: "1,5,16,64,128",
    prompt: 128,
    new: 256,
    rounds: 2,
    python: "",
    vllmPython: "python3",
    peers: "mlx-lm",
    http: false,
    scaling: false,
    prefillGap: false,
    streams: 32,
    long: 8192,
    keepUnpacked: "",
    tokenBudget: 0,
    bandwidth: 4800,
    json: "",
  },
  true,
);
const { rounds, prompt, streams } = values;
const [folder] = values.positionals;
if (folder === undefined) throw new Error("name the folder of a model");
const loads = parseLoads(
  values.scaling ? "1,2,4,8,16,32,64,128,256" : values.requests,
  prompt,
  values.new,
);
/** Starts each peer by name, after the engine. */
const startPeer: Record<string, () => Promise<System>> = {
  "mlx-lm": async () => mlxLmSystem(values.python || mlxLmPython(), folder, own, mlxLmShare),
  vllm: async () => vllmSystem(values.vllmPython, folder, own, loads),
};
const peers = parsePeers(values.peers);

const fixed = (value: number | undefined, digits = 0) => value?.toFixed(digits) ?? "-";
const columns: [title: string, cell: (result: Result) => string][] = [
  ["requests", ({ requests, prompt, new: tokens }) => `${requests} x ${prompt}+${tokens}`],
  ["system", ({ system }) => system],
  ["decode tokens/s", ({ best, error }) => error ?? fixed(best?.decode)],
  ["full batch", ({ best }) => fixed(best?.fullBatch)],
  ["end to end", ({ best }) => fixed(best?.endToEnd)],
  ["first token, median ms", ({ best }) => fixed(best?.firstMedianMs, 1)],
  ["longest", ({ best }) => fixed(best?.firstMaxMs, 1)],
  ["prompt tokens/s", ({ best }) => fixed(best?.prefill)],
  ["step ms", ({ best }) => fixed(best?.stepMs, 3)],
  ["of the memory limit", ({ best }) => fixed(best?.memoryShare, 3)],
  ...peers.flatMap((peer): typeof columns => [
    [`decode / ${peer}`, (result) => fixed(result.against[peer]?.decode, 2)],
    [`full batch / ${peer}`, (result) => fixed(result.against[peer]?.fullBatch, 2)],
    [`prompts / ${peer}`, (result) => fixed(result.against[peer]?.prefill, 2)],
    [`first token / ${peer}`, (result) => fixed(result.against[peer]?.first, 2)],
  ]),
];

const tokenBudget = values.tokenBudget || undefined;
const maxBatch = Math.max(streams + 1, mostOf(loads));
/** Next to peers, the loads' requirements with a margin instead of half of the GPU's memory. */
const spare = peers.includes("vllm") ? 1.1 : 2;
const blocks =
  peers.length > 0
    ? Math.max(
        ...loads.map((load) => Math.ceil(spare * load.requests * blocksOf(load.prompt + load.new))),
      )
    : undefined;
/** mlx-lm's memory limit, including cached buffers. */
const mlxLmShare = peers.includes("vllm") ? 0.35 : 0.6;
const asked = values.keepUnpacked;
if (!["", "on", "off"].includes(asked)) throw new Error("--keep-unpacked is on or off");
const keepUnpacked = asked === "" ? undefined : asked === "on";
const engineOptions = { maxBatch, tokenBudget, blocks, keepUnpacked };
const http = values.http ? await import("./gpu/http.ts") : undefined;
const served = await http?.startServed(folder, engineOptions);
const own = served ?? (await startEngine(folder, engineOptions));
const memory = memoryOf(own);
const { deviceName, mlxVersion } = await own.engine.inspect();
const report: Report = {
  model: basename(resolve(folder)),
  device: deviceName,
  mlxVersion,
  dtype: own.info.dtype,
  tokenBudget: tokenBudget ?? defaultEngineOptions.tokenBudget,
  memory,
  versions: {},
  results: [],
  prefillGap: [],
};
console.log(
  `${report.model} on ${deviceName}, MLX ${mlxVersion}: ` +
    `${(memory.weightBytes / 1e9).toFixed(2)} GB of weights, ${memory.kvBytesPerToken} bytes of KV a token`,
);

if (values.prefillGap) await measureGap();
if (values.scaling || !values.prefillGap) await measureLoads();
await own.stop();

async function measureLoads(): Promise<void> {
  const systems = [engineSystem(own)];
  if (!values.scaling) {
    if (http && served) systems.push(await http.httpSystem(served));
    for (const peer of peers) {
      systems.push(await startPeer[peer]!().catch((error) => absentSystem(peer, error)));
    }
  }
  for (const { name, version } of systems) if (version) report.versions[name] = version;
  printRow(columns.map(([title]) => title));
  printRow(columns.map(() => "---"));
  for (const load of loads) {
    const measured = await measureInTurns(systems, load);
    for (const result of measured) {
      for (const { system, best } of measured) {
        if (result.best && best && isPeer(system) && !isPeer(result.system)) {
          result.against[system] = against(result.best, best);
        }
      }
      printRow(columns.map(([, cell]) => cell(result)));
    }
    report.results.push(...measured);
    save();
  }
  for (const system of systems) await system.stop();
  if (!values.scaling) return;
  report.verdict = scalingVerdict();
  console.log(report.verdict);
  save();
}

/** Each system warms up with a whole round, then rounds are interleaved. */
async function measureInTurns(systems: readonly System[], load: Load): Promise<Result[]> {
  const all = systems.map((system) => {
    const result: Result = { ...load, system: system.name, rounds: [], against: {} };
    return { system, result };
  });
  for (let round = 0; round <= rounds; round++) {
    for (const { system, result } of all) {
      if (result.error) continue;
      try {
        const arrivals = await system.measure(load);
        if (arrivals.some((times) => times.length !== load.new)) {
          throw new Error("an answer ended early");
        }
        const figures = figuresOf(arrivals, load.prompt, memory);
        if (round > 0) result.rounds.push(figures);
        const name = round === 0 ? "warm-up" : `round ${round}`;
        const speed =
          `first tokens until ${figures.firstMaxMs.toFixed(1)} ms, ` +
          `${figures.decode.toFixed(0)} tokens/s`;
        console.error(
          `${load.requests} x ${load.prompt}+${load.new}, ${name}, ${system.name}: ${speed}`,
        );
      } catch (error) {
        result.error = String(error);
        console.error(`${load.requests} x ${load.prompt}+${load.new}, ${system.name}: ${error}`);
      }
    }
  }
  return all.map(({ result }) =>
    result.rounds.length > 0 ? { ...result, best: bestOf(result.rounds) } : result,
  );
}

async function measureGap(): Promise<void> {
  const load = { streams, prompt, long: values.long };
  await measurePrefillGap(own, load);
  for (let round = 0; round < rounds; round++) {
    const gap = await measurePrefillGap(own, load);
    report.prefillGap.push(gap);
    console.log(
      `${streams} streams while ${load.long} tokens are read (${gap.firstMs.toFixed(0)} ms): between tokens ` +
        `median ${gap.medianMs.toFixed(2)} ms, longest ${gap.longestMs.toFixed(2)} ms, ` +
        `ratio ${gap.ratio.toFixed(2)}; before it median ${gap.aloneMedianMs.toFixed(2)} ms`,
    );
  }
  save();
}

function scalingVerdict(): string {
  const falls = report.results.flatMap(({ requests, best }, i) => {
    const before = report.results[i - 1]?.best;
    if (!best || !before || best.decode >= before.decode) return [];
    return [`from ${before.decode.toFixed(0)} to ${best.decode.toFixed(0)} at ${requests}`];
  });
  return falls.length === 0 ? "throughput never falls" : `throughput falls ${falls.join(", ")}`;
}

/** Every step reads every weight once; of an untied embedding, only one row per token. */
function memoryOf({ info }: Own): Memory {
  const { tensors } = readSafetensorsIndex(folder!);
  const hasHead = tensors.has("lm_head.weight");
  const read = [...tensors.values()].filter(
    ({ name }) => !(hasHead && name.startsWith("model.embed_tokens.")),
  );
  return {
    weightBytes: read.reduce((sum, { bytes }) => sum + bytes, 0),
    kvBytesPerToken: info.kvBytes / (info.blocks * BLOCK_TOKENS),
    bytesPerSecond: values.bandwidth * 1e9,
  };
}

function parsePeers(text: string): string[] {
  const names = text === "none" ? [] : text.split(",");
  for (const name of names) {
    if (!isPeer(name)) {
      throw new Error(`a peer is ${Object.keys(startPeer).join(" or ")}, and not ${name}`);
    }
  }
  return names;
}

function isPeer(system: string): boolean {
  return Object.hasOwn(startPeer, system);
}

function blocksOf(tokens: number): number {
  return Math.ceil(tokens / BLOCK_TOKENS) + 1;
}

function printRow(cells: readonly string[]): void {
  console.log(`| ${cells.join(" | ")} |`);
}

/** Written after each load, so that an interrupted run leaves results. */
function save(): void {
  if (values.json) writeFileSync(values.json, JSON.stringify(report, undefined, 2));
}
