// mlx-serve show: describes a model and checks whether it will load here. For a repo that is not in the cache, it
// fetches the config and the headers of the weights from the hub.
import { parseArgs } from "node:util";
import { engineSetup } from "../../ffi/native.ts";
import { UsageError } from "../config/usage-error.ts";
import { EngineClient } from "../engine/client.ts";
import type { ModelPlan } from "../engine/protocol.ts";
import { formatBytes, totalBytes } from "../hub/bytes.ts";
import { HubError } from "../hub/hub-error.ts";
import type { Environment } from "../hub/settings.ts";
import { printable } from "../printable.ts";
import { checkLoad, type LoadCheck } from "../serve/load-check.ts";
import { counted, describeModel, type ModelDescription } from "../serve/model-description.ts";
import { type OpenedModel, openModel, withoutFolder } from "./models/open-model.ts";
import { print } from "./terminal/print.ts";

export async function show(args: string[], env: Environment = process.env): Promise<void> {
  const { values, positionals } = parseArgs({
    args,
    options: { json: { type: "boolean" } },
    allowPositionals: true,
  });
  const [name = "default", ...more] = positionals;
  if (more.length > 0) throw new UsageError("usage: mlx-serve show [model] [--json]");
  using opened = await openModel(name, env);
  const told = (text: string) => withoutFolder(opened, text);
  try {
    const load = await check(opened);
    const reasons = load.reasons.map(told);
    const description = described(opened, load);
    const model = { ...description, path: told(description.path) };
    print(
      values.json
        ? JSON.stringify({ ...model, load: { ...load, reasons } }, null, 2)
        : asText(model, load),
    );
    if (!load.loads) throw new HubError(`${name} does not load: ${reasons.join("; ")}`);
  } catch (error) {
    if (error instanceof Error) error.message = told(error.message);
    throw error;
  }
}

/** Describes a model; if that fails, throws the error that loading it would give. */
function described({ source }: OpenedModel, { reasons: [reason] }: LoadCheck): ModelDescription {
  try {
    return describeModel(source);
  } catch (error) {
    throw reason === undefined ? error : new HubError(reason);
  }
}

async function check({ source }: OpenedModel): Promise<LoadCheck> {
  const engine = await EngineClient.start(engineSetup());
  try {
    return await checkLoad(source, engine);
  } finally {
    await engine.stop();
  }
}

function asText(model: ModelDescription, load: LoadCheck): string {
  const { parameters, files } = model;
  const rows = Object.entries({
    model: model.name,
    format: model.format,
    architecture: model.architecture ?? "unknown",
    parameters: parameters === undefined ? "unknown" : counted(parameters),
    quantization: model.quantization ?? "none",
    context: model.contextLength === undefined ? "unknown" : `${model.contextLength} tokens`,
    ...(model.dtype !== undefined && { dtype: model.dtype }),
    template: model.hasChatTemplate ? "yes" : "no",
    ...(load.tokens !== undefined && { tokenizer: `${load.tokens} tokens` }),
    size: formatBytes(totalBytes(files)),
    path: model.path,
    loads: load.loads ? "yes" : "no",
    ...(load.plan && memoryRows(load.plan)),
  }).map(([key, value]) => `${key.padEnd(14)}${printable(value)}`);
  const names = files.map(({ path }) => printable(path));
  const width = Math.max(...names.map(({ length }) => length));
  const list = files.map(({ bytes }, i) => `  ${names[i]!.padEnd(width)}  ${formatBytes(bytes)}`);
  return [...rows, "files", ...list].join("\n");
}

/** Returns the table rows about memory use on this device. */
function memoryRows(plan: ModelPlan): Record<string, string> {
  const kv = plan.kv.map(({ bytesPerToken, window }) => {
    const each = `${formatBytes(bytesPerToken)} per token`;
    return window === undefined ? each : `${each}, last ${window} tokens`;
  });
  const { stateBytes, weightBytes, kvBytes, stepBytes, memoryLimitBytes } = plan;
  const { maxLength, maxPositions } = plan;
  const most = maxLength < maxPositions ? `, of ${maxPositions} (limited by memory)` : "";
  return {
    weights: `${formatBytes(weightBytes)} in memory, ${plan.dtype} on ${plan.backend}`,
    ...(kv.length > 0 && { "KV cache": kv.join(", ") }),
    ...(stateBytes > 0 && { states: `${formatBytes(stateBytes)} per sequence` }),
    memory:
      `${formatBytes(weightBytes + kvBytes + stepBytes)} of ${formatBytes(memoryLimitBytes)}, ` +
      `with a KV pool of ${formatBytes(kvBytes)} and steps of ${formatBytes(stepBytes)}`,
    "max length": `${maxLength} tokens${most}`,
  };
}
