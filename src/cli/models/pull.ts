// mlx-serve pull: downloads a model from the hub into the cache shared by all Hugging Face tools.
import { parseArgs } from "node:util";
import { UsageError } from "../../config/usage-error.ts";
import { formatBytes } from "../../hub/bytes.ts";
import { quoted } from "../../hub/hub-error.ts";
import { fullName, unknownModel } from "../../hub/popular-models.ts";
import { Progress, type ProgressOutput } from "../../hub/progress.ts";
import { type PullEvent, type Pulled, pullModel } from "../../hub/pull.ts";
import { parseRepoName, type RepoName } from "../../hub/repo-name.ts";
import type { Environment } from "../../hub/settings.ts";
import { printable } from "../../printable.ts";
import { ProgressLine } from "../terminal/progress.ts";

const usage = "mlx-serve pull <model> [--include <glob>]... [--json]";

/** Prints the snapshot's folder to stdout, for scripts; everything else goes to stderr. */
export async function pull(
  args: string[],
  env: Environment = process.env,
  output: ProgressOutput = process.stderr,
): Promise<void> {
  const { values, positionals } = parseArgs({
    args,
    options: { include: { type: "string", multiple: true }, json: { type: "boolean" } },
    allowPositionals: true,
  });
  const [name, ...more] = positionals;
  if (name === undefined || more.length > 0) throw new UsageError(`usage: ${usage}`);
  const repo = parseRepoName(fullName(name, env));
  if (!repo) throw new UsageError(`${quoted(name)} is not the name of a repo; usage: ${usage}`);
  if (!repo.id.includes("/")) throw unknownModel(name, env);
  const { include, json } = values;
  const pulled = await pullShown(repo, { include, json, env, output });
  console.log(json ? JSON.stringify({ model: repo.id, ...pulled }) : pulled.path);
}

export type PullShownOptions = {
  include?: string[] | undefined;
  json?: boolean | undefined;
  env: Environment;
  output?: ProgressOutput;
};

/** Downloads a model from the hub and shows the progress on `output`. */
export async function pullShown(
  { id, ...wanted }: RepoName,
  { include, json = false, env, output = process.stderr }: PullShownOptions,
): Promise<Pulled> {
  const progress = new Progress(output);
  const forPrograms = new ProgressLine({ json, output });
  const isForPrograms = json && !output.isTTY;
  const pulled = await pullModel(id, {
    ...wanted,
    ...(include && { include }),
    env,
    onEvent: (event) => {
      if (!isForPrograms) show(progress, id, event);
      else if (event.kind === "bytes") {
        const { doneBytes: done, totalBytes: total } = event;
        forPrograms.show({ event: "pull", model: id, done, total }, "");
      }
    },
  });
  const { bytes, downloadedBytes } = pulled;
  if (isForPrograms) return pulled;
  if (downloadedBytes > 0) progress.finish(bytes, bytes);
  else progress.say(`${id} is already in the cache`);
  return pulled;
}

function show(progress: Progress, id: string, event: PullEvent): void {
  switch (event.kind) {
    case "waiting":
      progress.say(`another process is pulling ${id}: waiting for it`);
      break;
    case "listed": {
      const here =
        event.cachedBytes > 0 ? `, ${formatBytes(event.cachedBytes)} of that in the cache` : "";
      const size = `${event.files} files, ${formatBytes(event.bytes)}${here}`;
      progress.say(`${id} at ${event.commit.slice(0, 8)}: ${size}`);
      break;
    }
    case "bytes":
      progress.update(event.doneBytes, event.totalBytes);
      break;
    case "retry":
      progress.say(`${printable(event.reason)}; retrying in ${Math.ceil(event.delayMs / 1000)} s`);
      break;
  }
}
