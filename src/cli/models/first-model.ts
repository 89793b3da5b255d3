// The model of a server started without a model name: the default model; if that does not exist, the user may choose on
// a terminal among models on this machine and popular ones that fit in memory.
import { engineSetup } from "../../../ffi/native.ts";
import { EngineClient } from "../../engine/client.ts";
import { formatBytes } from "../../hub/bytes.ts";
import { listRepos } from "../../hub/cache.ts";
import { ModelNotFoundError } from "../../hub/hub-error.ts";
import { neededBytes, popularModels } from "../../hub/popular-models.ts";
import { parseRepoName } from "../../hub/repo-name.ts";
import { type Environment, hubCache, isOffline } from "../../hub/settings.ts";
import { resolveModel } from "../../hub/source.ts";
import { checkLoad } from "../../serve/load-check.ts";
import { choose } from "../terminal/choice.ts";
import { tell } from "../terminal/tell.ts";
import { openModel, withoutFolder } from "./open-model.ts";
import { pullShown } from "./pull.ts";

/** Returns a name that `resolveModel` accepts; throws if there is no model to serve. */
export async function firstModel(env: Environment): Promise<string> {
  try {
    resolveModel("default", { env });
    return "default";
  } catch (error) {
    const isTerminal = process.stdin.isTTY && process.stderr.isTTY;
    if (!(error instanceof ModelNotFoundError) || !isTerminal) throw error;
    const chosen = await offer(env);
    if (chosen === undefined) throw error;
    tell(`next time: mlx-serve serve ${chosen}`);
    return chosen;
  }
}

export type Candidate = {
  readonly repo: string;
  /** Approximate bytes of the weights. */
  readonly bytes: number;
  readonly isHere: boolean;
};

async function offer(env: Environment): Promise<string | undefined> {
  const engine = await EngineClient.start(engineSetup(env));
  try {
    const report = await engine.inspect();
    const limit = report.memory.roomBytes;
    const available = isOffline(env) ? [] : offered(env);
    let candidates = fitting([...modelsHere(env), ...available], limit);
    const easy = report.backend === "cpu" ? Math.min(limit / 2, CPU_BYTES) : limit / 2;
    const memory = `${formatBytes(limit)} of memory for models on ${report.deviceName}`;
    for (;;) {
      if (candidates.length === 0) return undefined;
      tell(`No model was given. There are ${memory}. Serve one of these?`);
      tell("(arrow keys or a number, then Enter; Esc cancels)");
      const index = await choose(linesOf(candidates), suggested(candidates, easy));
      if (index === undefined) return undefined;
      const { repo, isHere: isPulled } = candidates[index]!;
      const reasons = await problems(repo, engine, env);
      if (reasons.length === 0) {
        if (!isPulled) await pullShown(parseRepoName(repo)!, { env });
        return repo;
      }
      tell(`${repo} cannot be loaded here: ${reasons.join("; ")}`);
      candidates = candidates.filter((each) => each.repo !== repo);
    }
  } finally {
    await engine.stop();
  }
}

/** Returns the popular models that are suggested to new users. */
export function offered(env: Environment): Candidate[] {
  return popularModels(env).flatMap(({ repo, bytes, isOffered }) =>
    isOffered && bytes !== undefined ? [{ repo, bytes, isHere: false }] : [],
  );
}

/** Returns the models that can be served without a pull, most recently used first. */
function modelsHere(env: Environment): Candidate[] {
  return listRepos(hubCache(env))
    .filter(({ id }) => isHere(id, env))
    .toSorted((a, b) => b.modifiedMs - a.modifiedMs)
    .map(({ id, bytes }) => ({ repo: id, bytes, isHere: true }));
}

/** Returns whether a repo can be served without a pull. */
export function isHere(repo: string, env: Environment): boolean {
  try {
    resolveModel(repo, { env, allowPaths: false });
    return true;
  } catch {
    return false;
  }
}

/** Returns the models whose weights fit in memory, without duplicates. */
export function fitting(models: readonly Candidate[], limit: number): Candidate[] {
  return models
    .filter(({ repo }, i) => models.findIndex((each) => each.repo === repo) === i)
    .filter(({ bytes }) => neededBytes(bytes) <= limit);
}

/** Maximum weight bytes of a model suggested on a CPU, which reads all weights per token: larger ones feel slow. */
const CPU_BYTES = 2.5e9;

/** Returns the index of the most recently used model, or else of the largest one up to `easyBytes`. */
export function suggested(candidates: readonly Candidate[], easyBytes: number): number {
  const index = candidates.findIndex(({ isHere, bytes }) => isHere || bytes <= easyBytes);
  return index < 0 ? candidates.length - 1 : index;
}

function linesOf(candidates: readonly Candidate[]): string[] {
  const width = Math.max(...candidates.map(({ repo }) => repo.length));
  return candidates.map(({ repo, bytes, isHere }) => {
    const size = formatBytes(bytes).padStart(8);
    return `${repo.padEnd(width)}  ${size}${isHere ? ", on this machine" : " to download"}`;
  });
}

/** Returns the reasons why the model would not load, as `show` reports them, before anything is downloaded. */
async function problems(
  repo: string,
  engine: EngineClient,
  env: Environment,
): Promise<readonly string[]> {
  using opened = await openModel(repo, env);
  const { reasons } = await checkLoad(opened.source, engine);
  return reasons.map((reason) => withoutFolder(opened, reason));
}
