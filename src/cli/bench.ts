// mlx-serve bench [mode]: measures the engine on this machine, or any server with the OpenAI HTTP API.
import { writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { openEngineTarget } from "../bench/engine-target.ts";
import { type ModeName, measure, modes } from "../bench/modes.ts";
import { pictureOf } from "../bench/picture.ts";
import { builtInPrompts, readPrompts } from "../bench/prompts.ts";
import { machine, reportOf, tables } from "../bench/report.ts";
import { openServerTarget } from "../bench/server-target.ts";
import type { Target } from "../bench/target.ts";
import { UsageError } from "../config/usage-error.ts";
import { barOf } from "../hub/progress.ts";
import { printable } from "../printable.ts";
import { modelHere } from "./models/model-here.ts";
import { startLocalRanks } from "./ranks.ts";
import { ProgressLine, showActivity } from "./terminal/progress.ts";
import { didYouMean } from "./terminal/suggest.ts";

const options = {
  model: { type: "string", short: "m" },
  url: { type: "string" },
  "api-key": { type: "string" },
  chat: { type: "boolean", default: false },
  requests: { type: "string", default: "8" },
  concurrency: { type: "string" },
  "max-tokens": { type: "string", default: "64" },
  "max-batch-size": { type: "string" },
  ranks: { type: "string", default: "1" },
  "prompt-file": { type: "string" },
  repeat: { type: "string", default: "3" },
  warmup: { type: "string", default: "1" },
  "slo-ttft": { type: "string" },
  "slo-itl": { type: "string" },
  "min-speedup": { type: "string" },
  json: { type: "string" },
  plot: { type: "string" },
} as const;

export async function bench(args: string[]): Promise<void> {
  const settings = settingsOf(args);
  const { modeName, requests, levels, repeat, warmup, minSpeedup } = settings;
  const mode = modes[modeName];
  const target = await openTarget(settings);
  const total = mode.count({ requests, levels }) * (warmup + repeat);
  const progress = new ProgressLine({ json: settings.json !== undefined });
  let done = 0;
  const show = () => {
    const text = `${barOf(done, total)}  ${modeName}  ${done} of ${total} requests`;
    progress.show({ event: "requests", done, total, mode: modeName }, text);
  };
  show();
  const onAnswer = () => {
    done += 1;
    show();
  };
  const results = await measure(mode, { ...settings, target, onAnswer }, settings).finally(
    async () => {
      progress.clear();
      await target.close();
    },
  );
  const { about } = target;
  const report = reportOf(about, args, toldOf(settings), results);
  const system = about.url === undefined ? "mlx-serve" : new URL(about.url).host;
  const heading = [system, about.server, about.model].filter(Boolean).join(", ");
  console.log(`${printable(heading)}\n\n${tables(results)}\n\n${mode.verdict(results)}`);
  if (settings.json !== undefined) {
    writeFileSync(settings.json, `${JSON.stringify(report, null, 2)}\n`);
  }
  if (settings.plot !== undefined) {
    const { cpu, cores } = machine();
    const note = `${about.model}, ${about.device ?? `${cpu}, ${cores} cores`}`;
    writeFileSync(settings.plot, pictureOf(mode, results, system, note));
  }
  const speedup = Math.max(...results.map((result) => result.speedup ?? 0));
  if (minSpeedup !== undefined && speedup < minSpeedup) {
    throw new Error(`the speedup is ${speedup.toFixed(2)}, below the minimum of ${minSpeedup}`);
  }
}

type Flags = ReturnType<typeof parse>["values"];
type BenchSettings = ReturnType<typeof settingsOf>;

const parse = (args: string[]) => parseArgs({ args, options, allowPositionals: true });

function settingsOf(args: string[]) {
  const { values, positionals } = parse(args);
  const modeName = modeOf(positionals);
  refuseIdle(values, modeName);
  const requests = wholeOf("requests", values.requests);
  const levels = (values.concurrency ?? "1,2,4,8,16,32").split(",");
  // Priorities have no effect if all requests fit in a batch, so the batch holds a quarter of them.
  const ownBatch = modeName === "priority" ? String(Math.ceil(requests / 4)) : "32";
  const { model, url, chat, json, plot, "prompt-file": promptFile } = values;
  return {
    ...{ modeName, model, url, chat, json, plot, requests, promptFile },
    apiKey: values["api-key"],
    levels: levels.map((level) => wholeOf("concurrency", level)),
    maxTokens: wholeOf("max-tokens", values["max-tokens"]),
    maxBatch: wholeOf("max-batch-size", values["max-batch-size"] ?? ownBatch),
    ranks: wholeOf("ranks", values.ranks),
    prompts: promptFile === undefined ? builtInPrompts : readPrompts(promptFile),
    repeat: wholeOf("repeat", values.repeat),
    warmup: wholeOf("warmup", values.warmup, 0),
    slo: {
      ttftMs: optionalNumber("slo-ttft", values["slo-ttft"]),
      itlMs: optionalNumber("slo-itl", values["slo-itl"]),
    },
    minSpeedup: optionalNumber("min-speedup", values["min-speedup"]),
  };
}

/** Throws if a flag would have no effect in this mode. */
function refuseIdle(values: Flags, modeName: ModeName): void {
  if (values["min-speedup"] !== undefined && !modes[modeName].speedup) {
    throw new UsageError(`--min-speedup: ${modeName} has no speedup`);
  }
  if (values.concurrency !== undefined && modeName !== "sweep") {
    throw new UsageError("--concurrency: only a sweep has levels");
  }
  if (values.url === undefined && values["api-key"] !== undefined) {
    throw new UsageError("--api-key: only a server, named by --url, takes one");
  }
  if (values.url !== undefined && values["max-batch-size"] !== undefined) {
    throw new UsageError("--max-batch-size: the server of --url has its own");
  }
  if (values.url !== undefined && values.ranks !== "1") {
    throw new UsageError("--ranks: the server of --url has its own");
  }
  if (values.url !== undefined && !/^https?:\/\//.test(values.url)) {
    throw new UsageError(`--url: expected http://... or https://..., not ${values.url}`);
  }
}

/** Returns the settings as the report shows them. */
function toldOf(settings: BenchSettings): Record<string, unknown> {
  const { modeName, url, slo } = settings;
  return {
    mode: modeName,
    requests: settings.requests,
    max_tokens: settings.maxTokens,
    ...(modeName === "sweep" && { concurrency: settings.levels }),
    ...(url === undefined && { max_batch_size: settings.maxBatch, ranks: settings.ranks }),
    repeat: settings.repeat,
    warmup: settings.warmup,
    chat: settings.chat,
    prompts: settings.promptFile ?? "built-in",
    slo_ttft_ms: slo.ttftMs,
    slo_itl_ms: slo.itlMs,
  };
}

async function openTarget(settings: BenchSettings): Promise<Target> {
  const { url, model, apiKey, chat, maxBatch, ranks } = settings;
  const shown = { json: settings.json !== undefined };
  if (url !== undefined) return await openServerTarget({ url, model, apiKey, chat });
  const source = await modelHere(model ?? "default");
  return await openEngineTarget({
    source,
    chat,
    maxBatch,
    ranks: await startLocalRanks(ranks),
    onActivity: showActivity(shown),
  });
}

function modeOf([name = "compare", ...more]: readonly string[]): ModeName {
  if (more.length === 0 && Object.keys(modes).includes(name)) return name as ModeName;
  const names = Object.keys(modes);
  throw new UsageError(`bench takes one mode of ${names.join(", ")}${didYouMean(name, names)}`);
}

function wholeOf(flag: string, value: string, least = 1): number {
  if (/^\d{1,6}$/.test(value) && Number(value) >= least) return Number(value);
  throw new UsageError(`--${flag}: expected a whole number from ${least} on, not ${value}`);
}

function optionalNumber(flag: string, value: string | undefined): number | undefined {
  if (value === undefined) return undefined;
  if (/^\d+(\.\d+)?$/.test(value) && Number(value) > 0) return Number(value);
  throw new UsageError(`--${flag}: expected a number above 0, not ${value}`);
}
