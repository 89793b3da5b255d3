// The tables of docs/models.md: the supported architectures of llama.cpp, and of each file of mlx-lm's models.
// mlx-lm-files.json lists the files, and reasons for unsupported ones; the registry knows the supported ones, and
// test/golden/authors those that are compared with transformers.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { ggufArchitectures } from "../src/model/checkpoint/gguf/config.ts";
import { architectures } from "../src/model/registry.ts";
import listed from "./mlx-lm-files.json" with { type: "json" };

/** A file of mlx_lm/models: the supported model_types and those compared with transformers, or why there are none. */
export type ModelRow = { file: string; supported: string[]; compared: string[]; reason: string };

/** `renamed`: mlx-lm's aliases of a file. `others`: aliases that mlx-lm does not know. */
export const { version, files, renamed, others } = listed as {
  version: string;
  files: Record<string, string>;
  renamed: Record<string, string>;
  others: Record<string, string>;
};

const authors = join(import.meta.dir, "../test/golden/authors");
const readJson = (name: string) => JSON.parse(readFileSync(join(authors, name), "utf8"));

export function modelRows(): ModelRow[] {
  const cases: { config: { model_type: string } }[] = readJson("configs.json");
  const ofAuthors = new Set(cases.map(({ config }) => config.model_type));
  return Object.entries(files).map(([file, reason]) => {
    const names = Object.entries({ ...renamed, ...others }).filter(([, own]) => own === file);
    const supported = [file, ...names.map(([name]) => name)].filter((name) =>
      architectures.has(name),
    );
    const compared = supported.filter((name) => ofAuthors.has(name));
    return { file, supported, compared, reason: reason || "not yet" };
  });
}

export function modelTable(): string {
  const rows = modelRows();
  const supported = rows.filter((row) => row.supported.length > 0);
  const models = rows.filter(({ reason }) => reason !== "a helper");
  const compared = rows.flatMap((row) => row.compared).length;
  const quoted = (types: string[]) => types.map((name) => `\`${name}\``).join(", ");
  const lines = rows.map((row) => {
    return `| ${row.file} | ${quoted(row.supported) || row.reason} | ${quoted(row.compared)} |`;
  });
  return [
    `mlx-lm ${version} has ${models.length} files of models. ${supported.length} are supported, each under the`,
    "`model_type` that its configuration has, by a file in `src/model/archs`.",
    `${compared} model types are compared with transformers ${readJson("goldens.json").version}, too.`,
    "",
    "| file | supported as, or why not | compared with transformers |",
    "| --- | --- | --- |",
    ...lines,
  ].join("\n");
}

/** The supported general.architecture of GGUF files, wrapped to a document's width. */
export function ggufList(): string {
  const names = ggufArchitectures.map((name) => `\`${name}\``).join(", ");
  const text = `GGUF files are read of ${ggufArchitectures.length} architectures: ${names}.`;
  return text.replaceAll(/(.{1,119})(?: |$)/g, "$1\n").trimEnd();
}
