// mlx-serve show: what a model is, as text or as JSON.
import { parseArgs } from "node:util";
import { formatBytes } from "../hub/bytes.ts";
import { HubError } from "../hub/hub-error.ts";
import type { Environment } from "../hub/settings.ts";
import { resolveModel } from "../hub/source.ts";
import { printable } from "../printable.ts";
import { counted, describeModel, type ModelDescription } from "../serve/model-description.ts";
import { print } from "./print.ts";

export async function show(args: string[], env: Environment = process.env): Promise<void> {
  const { values, positionals } = parseArgs({
    args,
    options: { json: { type: "boolean" } },
    allowPositionals: true,
  });
  const [name = "default", ...more] = positionals;
  if (more.length > 0) throw new HubError("usage: mlx-serve show [model] [--json]");
  const model = describeModel(resolveModel(name, { env }));
  print(values.json ? JSON.stringify(model, null, 2) : asText(model));
}

function asText(model: ModelDescription): string {
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
    size: formatBytes(sum(files.map(({ bytes }) => bytes))),
    path: model.path,
  }).map(([key, value]) => `${key.padEnd(14)}${printable(value)}`);
  const names = files.map(({ path }) => printable(path));
  const width = Math.max(...names.map(({ length }) => length));
  const list = files.map(({ bytes }, i) => `  ${names[i]!.padEnd(width)}  ${formatBytes(bytes)}`);
  return [...rows, "files", ...list].join("\n");
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((result, number) => result + number, 0);
}
