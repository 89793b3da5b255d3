// mlx-serve models: the short names of popular models, and which of them fit in this machine's memory.
import { parseArgs } from "node:util";
import { engineSetup } from "../../ffi/native.ts";
import { EngineClient } from "../engine/client.ts";
import { formatBytes } from "../hub/bytes.ts";
import {
  neededBytes,
  type PopularModel,
  popularModels,
  popularModelsDate,
} from "../hub/popular-models.ts";
import type { Environment } from "../hub/settings.ts";
import { isHere } from "./models/first-model.ts";
import { print } from "./terminal/print.ts";
import { table } from "./terminal/table.ts";

export type PopularRow = Pick<PopularModel, "name" | "repo" | "bytes" | "context"> & {
  /** Minimum memory that the model needs here. This and `fits` are undefined if the model's size is unknown. */
  readonly memoryBytes: number | undefined;
  readonly fits: boolean | undefined;
  readonly isHere: boolean;
};

export async function models(args: string[], env: Environment = process.env): Promise<void> {
  const { values } = parseArgs({ args, options: { json: { type: "boolean" } } });
  const engine = await EngineClient.start(engineSetup(env));
  const { memory, deviceName } = await engine.inspect().finally(() => engine.stop());
  const rows = popularRows(memory.roomBytes, env);
  if (values.json) {
    const all = { date: popularModelsDate, roomBytes: memory.roomBytes, models: rows };
    return print(JSON.stringify(all, null, 2));
  }
  const room = `${formatBytes(memory.roomBytes)} free for models on ${deviceName}`;
  print(`${tableOf(rows)}\n\n${room}; the list dates from ${popularModelsDate}`);
}

export function popularRows(roomBytes: number, env: Environment): PopularRow[] {
  return popularModels(env).map(({ name, repo, bytes, context }) => {
    const memoryBytes = bytes === undefined ? undefined : neededBytes(bytes);
    const fits = memoryBytes === undefined ? undefined : memoryBytes <= roomBytes;
    return { name, repo, bytes, context, memoryBytes, fits, isHere: isHere(repo, env) };
  });
}

function tableOf(rows: readonly PopularRow[]): string {
  const size = (bytes: number | undefined) => (bytes === undefined ? "-" : formatBytes(bytes));
  return table(
    ["NAME", "REPO", "SIZE", "MEMORY", "CONTEXT", "FITS", ""],
    rows.map((row) => [
      row.name,
      row.repo,
      size(row.bytes),
      size(row.memoryBytes),
      `${row.context ?? "-"}`,
      row.fits === undefined ? "-" : row.fits ? "yes" : "no",
      row.isHere ? "pulled" : "",
    ]),
  );
}
