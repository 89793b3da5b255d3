// The tables of docs/models.md: the supported architectures of llama.cpp, and of each file of mlx-lm's models.
// mlx-lm-files.json lists the files, and reasons for unsupported ones; the registry knows the supported ones.
import { ggufArchitectures } from "../src/model/checkpoint/gguf/config.ts";
import { architectures } from "../src/model/registry.ts";
import listed from "./mlx-lm-files.json" with { type: "json" };

/** A file of mlx_lm/models: the supported model_types, or the reason why there are none. */
export type ModelRow = { file: string; supported: string[]; reason: string };

/** `renamed`: mlx-lm's aliases of a file. `others`: aliases that mlx-lm does not know. */
export const { version, files, renamed, others } = listed as {
  version: string;
  files: Record<string, string>;
  renamed: Record<string, string>;
  others: Record<string, string>;
};

export function modelRows(): ModelRow[] {
  return Object.entries(files).map(([file, reason]) => {
    const names = Object.entries({ ...renamed, ...others }).filter(([, own]) => own === file);
    const supported = [file, ...names.map(([name]) => name)].filter((name) =>
      architectures.has(name),
    );
    return { file, supported, reason: reason || "not yet" };
  });
}

export function modelTable(): string {
  const rows = modelRows();
  const supported = rows.filter((row) => row.supported.length > 0);
  const models = rows.filter(({ reason }) => reason !== "a helper");
  const lines = rows.map(({ file, supported: types, reason }) => {
    const names = types.map((name) => `\`${name}\``).join(", ");
    return `| ${file} | ${names || reason} |`;
  });
  return [
    `mlx-lm ${version} has ${models.length} files of models. ${supported.length} are supported, each under the`,
    "`model_type` that its configuration has, by a file in `src/model/archs`.",
    "",
    "| file | supported as, or why not |",
    "| --- | --- |",
    ...lines,
  ].join("\n");
}

/** The supported general.architecture of GGUF files, wrapped to a document's width. */
export function ggufList(): string {
  const names = ggufArchitectures.map((name) => `\`${name}\``).join(", ");
  const text = `GGUF files are read of ${ggufArchitectures.length} architectures: ${names}.`;
  return text.replaceAll(/(.{1,119})(?: |$)/g, "$1\n").trimEnd();
}
