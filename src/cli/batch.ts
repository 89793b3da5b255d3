// mlx-serve batch run <file> -o <file>: answers a file of requests like a server's batch, in this process. State is
// kept in a folder beside the output until all requests are answered, so a rerun resumes an interrupted run.
import { createHash } from "node:crypto";
import { createReadStream, existsSync, renameSync, rmSync, symlinkSync } from "node:fs";
import { resolve } from "node:path";
import { parseArgs } from "node:util";
import { engineSetup } from "../../ffi/native.ts";
import { type Batch, nowSeconds } from "../batch/batch.ts";
import { Batches, type BatchesOptions } from "../batch/batches.ts";
import { StoreBusyError } from "../batch/database.ts";
import { BatchStore, newId } from "../batch/store.ts";
import { loadSettings } from "../config/load.ts";
import { UsageError } from "../config/usage-error.ts";
import { batchesOptions } from "../http/batch-lines.ts";
import { startServing } from "../http/server.ts";
import { codeOf } from "../hub/hub-error.ts";
import { newKey } from "../keys/key-file.ts";
import { makeLogger } from "../log.ts";
import { modelHere } from "./models/model-here.ts";
import { environmentOf } from "./serve.ts";
import { print } from "./terminal/print.ts";
import { ProgressLine, showActivity } from "./terminal/progress.ts";
import { tell } from "./terminal/tell.ts";

const usage = "mlx-serve batch run <file> -o <file> [--model <model>] [--json]";

const options = {
  output: { type: "string", short: "o" },
  model: { type: "string", short: "m" },
  json: { type: "boolean" },
} as const;

/** The caller's name on a server without keys. */
const OWNER = "anonymous";

/** Maximum faults of the input file that are printed. */
const SHOWN_FAULTS = 20;

type Paths = { input: string; output: string; errors: string; folder: string };

export async function batch(args: string[]): Promise<void> {
  const { values, positionals } = parseArgs({ args, options, allowPositionals: true });
  const [verb, input, ...more] = positionals;
  const { output, model } = values;
  if (verb !== "run" || !input || more.length > 0 || !output) {
    throw new UsageError(`usage: ${usage}`);
  }
  const { settings } = loadSettings(model === undefined ? [] : [`--model=${model}`]);
  const paths: Paths = {
    input: resolve(input),
    output: resolve(output),
    errors: resolve(`${output}.errors`),
    folder: resolve(`${output}.batch`),
  };
  for (const path of existsSync(paths.folder) ? [] : [paths.output, paths.errors]) {
    if (existsSync(path)) throw new Error(`${path} already exists: choose another output`);
  }
  await prepare(paths);
  const debug = settings.logLevel === "debug";
  const log = makeLogger({ level: debug ? "debug" : "error", format: settings.logFormat });
  const { serving, stop } = await startServing({
    // The local user needs no key for these requests.
    settings: { ...settings, apiKey: [] },
    model: await modelHere(settings.model),
    keys: undefined,
    localKey: newKey(),
    worker: engineSetup(environmentOf(settings)),
    log,
    onActivity: showActivity({ json: values.json }),
  });
  try {
    await serving.models.get("default");
    const ended = await answerLines(paths, batchesOptions(serving, paths.folder), values.json);
    if (ended) deliver(paths, ended, values.json);
  } finally {
    await stop();
  }
}

/** Creates the folder of this run, or continues an earlier run of the same input in it. */
async function prepare({ input, folder }: Paths): Promise<void> {
  const { digest, bytes } = await contentOf(input);
  const store = openStore(folder);
  try {
    const [known] = store.files(OWNER, "batch", { limit: 1 }).data;
    if (known && known.filename !== digest) {
      throw new Error(`${input} has changed since ${folder} was created: remove one of them`);
    }
    const id = known?.id ?? newId("file");
    rmSync(store.pathOf(id), { force: true });
    symlinkSync(input, store.pathOf(id));
    if (!known) {
      const origin = { owner: OWNER, filename: digest, purpose: "batch" } as const;
      store.addFile({ id, ...origin, bytes, createdAt: nowSeconds(), expiresAt: undefined });
    }
    if (onlyBatch(store)) return;
    store.addBatch({
      owner: OWNER,
      endpoint: undefined,
      inputFile: id,
      window: "",
      expiresAt: undefined,
      metadata: undefined,
      outputSeconds: undefined,
    });
  } finally {
    store.close();
  }
}

function openStore(folder: string): BatchStore {
  try {
    return new BatchStore(folder);
  } catch (error) {
    if (!(error instanceof StoreBusyError)) throw error;
    throw new Error(`another process is using ${folder}`);
  }
}

/** Returns the folder's only batch; undefined before `prepare` has added it. */
function onlyBatch(store: BatchStore): Batch | undefined {
  return store.batches(OWNER, { limit: 1 }).data[0];
}

async function contentOf(path: string): Promise<{ digest: string; bytes: number }> {
  const hash = createHash("sha256");
  let bytes = 0;
  try {
    for await (const piece of createReadStream(path) as AsyncIterable<Buffer>) {
      hash.update(piece);
      bytes += piece.length;
    }
  } catch (error) {
    throw new Error(`${path} cannot be read (${codeOf(error)})`);
  }
  return { digest: hash.digest("hex"), bytes };
}

/** Answers the batch's requests; returns the ended batch, or undefined if a signal has interrupted it. */
async function answerLines(
  { folder }: Paths,
  options: BatchesOptions,
  json: boolean | undefined,
): Promise<EndedBatch | undefined> {
  const progress = new ProgressLine({ json });
  let isFirst = true;
  const batches = new Batches({
    ...options,
    maxLines: Number.POSITIVE_INFINITY,
    onProgress: ({ counts: { total, completed, failed } }) => {
      if (total === 0) return;
      const done = completed + failed;
      const text = `${done} of ${total} lines${failed > 0 ? `, ${failed} failed` : ""}`;
      progress.show({ event: "lines", done, total, failed }, text, isFirst);
      isFirst = false;
    },
  });
  const signalled = Promise.withResolvers<number>();
  process.once("SIGINT", () => signalled.resolve(130));
  process.once("SIGTERM", () => signalled.resolve(143));
  const code = await Promise.race([signalled.promise, batches.finished()]);
  const batch = onlyBatch(batches.store)!;
  progress.clear();
  const pathOf = (id: string | undefined) => id && batches.store.pathOf(id);
  await batches.stop();
  if (code === undefined) {
    return { ...batch, output: pathOf(batch.outputFile), errors: pathOf(batch.errorFile) };
  }
  const { total, completed, failed } = batch.counts;
  tell(`${completed + failed} of ${total} lines are done (${folder}): rerun to resume`);
  process.exitCode = code;
  return undefined;
}

/** A batch with the paths of its output files. */
type EndedBatch = Batch & { output: string | undefined; errors: string | undefined };

/** Moves the output files to their destinations and removes the folder. */
function deliver(
  paths: Paths,
  { status, faults, counts, ...written }: EndedBatch,
  json: boolean | undefined,
): void {
  for (const kind of ["output", "errors"] as const) {
    const path = written[kind];
    // The file is missing if an earlier run was killed after moving it.
    if (path && existsSync(path)) renameSync(path, paths[kind]);
  }
  rmSync(paths.folder, { recursive: true });
  if (status === "failed") {
    for (const { line, message } of faults.slice(0, SHOWN_FAULTS)) {
      tell(line === null ? message : `line ${line}: ${message}`);
    }
    throw new Error(`${paths.input} is not a file of requests`);
  }
  const errors = counts.failed > 0 ? `, ${counts.failed} failed: ${paths.errors}` : "";
  if (json) {
    const { output } = paths;
    print(
      JSON.stringify({ ...counts, output, ...(counts.failed > 0 && { errors: paths.errors }) }),
    );
  } else tell(`${counts.completed} of ${counts.total} lines answered${errors}`);
  if (counts.failed > 0) process.exitCode = 1;
}
