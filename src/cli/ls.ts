// mlx-serve ls: lists the models on this machine.
import { type Stats, statSync } from "node:fs";
import { parseArgs } from "node:util";
import { defaultModelPath } from "../../ffi/native.ts";
import { formatBytes } from "../hub/bytes.ts";
import { type CachedRepo, listRepos } from "../hub/cache.ts";
import { type Environment, hubCache } from "../hub/settings.ts";
import { print } from "./terminal/print.ts";
import { table } from "./terminal/table.ts";

export type ModelRow = {
  readonly name: string;
  readonly bytes: number;
  readonly format: string;
  readonly modified: string;
  readonly revisions: readonly { readonly commit: string; readonly refs: readonly string[] }[];
};

export async function ls(args: string[], env: Environment = process.env): Promise<void> {
  const { values } = parseArgs({ args, options: { json: { type: "boolean" } } });
  const rows = [...defaultRow(env), ...listRepos(hubCache(env)).map(rowOf)];
  print(values.json ? JSON.stringify(rows, null, 2) : tableOf(rows, Date.now()));
}

function defaultRow(env: Environment): ModelRow[] {
  const file = fileAt(defaultModelPath(env));
  if (!file) return [];
  const modified = file.mtime.toISOString();
  return [{ name: "default", bytes: file.size, format: "gguf", modified, revisions: [] }];
}

/** Returns a file's metadata; undefined if the file does not exist or is inaccessible. */
function fileAt(path: string): Stats | undefined {
  try {
    return statSync(path, { throwIfNoEntry: false });
  } catch {
    return undefined;
  }
}

function rowOf(repo: CachedRepo): ModelRow {
  return {
    name: repo.id,
    bytes: repo.bytes,
    format: formatOf(repo),
    modified: new Date(repo.modifiedMs).toISOString(),
    revisions: repo.revisions.map(({ commit, refs }) => ({ commit, refs })),
  };
}

function formatOf(repo: CachedRepo): string {
  const paths = repo.revisions.flatMap(({ files }) => files.map(({ path }) => path));
  const formats = ["safetensors", "gguf"].filter((format) =>
    paths.some((path) => path.endsWith(`.${format}`)),
  );
  if (formats.length > 0) return formats.join(", ");
  return repo.revisions.length > 0 ? "no weights" : "incomplete";
}

function tableOf(rows: readonly ModelRow[], nowMs: number): string {
  return table(
    ["NAME", "SIZE", "FORMAT", "MODIFIED"],
    rows.map(({ name, bytes, format, modified }) => [
      name,
      formatBytes(bytes),
      format,
      ago(nowMs - Date.parse(modified)),
    ]),
  );
}

function ago(ms: number): string {
  const minutes = Math.floor(ms / 60_000);
  if (minutes < 1) return "just now";
  const [count, unit] =
    minutes < 60
      ? [minutes, "minute"]
      : minutes < 60 * 24
        ? [Math.floor(minutes / 60), "hour"]
        : [Math.floor(minutes / 60 / 24), "day"];
  return `${count} ${unit}${count === 1 ? "" : "s"} ago`;
}
