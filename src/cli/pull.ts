// mlx-serve pull: a model from the hub into the cache that all Hugging Face tools share.
import { parseArgs } from "node:util";
import { UsageError } from "../config/usage-error.ts";
import { formatBytes } from "../hub/bytes.ts";
import { quoted } from "../hub/hub-error.ts";
import { fullName, unknownModel } from "../hub/popular-models.ts";
import { Progress, type ProgressOutput } from "../hub/progress.ts";
import { type PullEvent, pullModel } from "../hub/pull.ts";
import { parseRepoName, type RepoName } from "../hub/repo-name.ts";
import type { Environment } from "../hub/settings.ts";
import { printable } from "../printable.ts";

const usage = "mlx-serve pull <model> [--include <glob>]...";

/** The snapshot's folder goes to stdout, for scripts; everything else to stderr. */
export async function pull(
  args: string[],
  env: Environment = process.env,
  output: ProgressOutput = process.stderr,
): Promise<void> {
  const { values, positionals } = parseArgs({
    args,
    options: { include: { type: "string", multiple: true } },
    allowPositionals: true,
  });
  const [name, ...more] = positionals;
  if (name === undefined || more.length > 0) throw new UsageError(`usage: ${usage}`);
  const repo = parseRepoName(fullName(name, env));
  if (!repo) throw new UsageError(`${quoted(name)} is not the name of a repo; usage: ${usage}`);
  if (!repo.id.includes("/")) throw unknownModel(name, env);
  console.log(await pullShown(repo, values.include, env, output));
}

/** Returns the snapshot's folder; says on `output` how far it is. */
export async function pullShown(
  { id, ...wanted }: RepoName,
  include: string[] | undefined,
  env: Environment,
  output: ProgressOutput = process.stderr,
): Promise<string> {
  const progress = new Progress(output);
  const { path, bytes, downloadedBytes } = await pullModel(id, {
    ...wanted,
    ...(include && { include }),
    env,
    onEvent: (event) => show(progress, id, event),
  });
  if (downloadedBytes > 0) progress.finish(bytes, bytes);
  else progress.say(`${id} is here already`);
  return path;
}

function show(progress: Progress, id: string, event: PullEvent): void {
  switch (event.kind) {
    case "waiting":
      progress.say(`another process is pulling ${id}: waiting for it`);
      break;
    case "listed": {
      const here = event.cachedBytes > 0 ? `, ${formatBytes(event.cachedBytes)} of it here` : "";
      const size = `${event.files} files, ${formatBytes(event.bytes)}${here}`;
      progress.say(`${id} at ${event.commit.slice(0, 8)}: ${size}`);
      break;
    }
    case "bytes":
      progress.update(event.doneBytes, event.totalBytes);
      break;
    case "retry":
      progress.say(
        `${printable(event.reason)}; trying again in ${Math.ceil(event.delayMs / 1000)} s`,
      );
      break;
  }
}
