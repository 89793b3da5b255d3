// The model of a server that is started without one: the default model, or where there is none and a terminal, one
// that the user chooses among those on this machine and well-known ones that fit its memory.
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

/** A name that `resolveModel` knows; throws where there is nothing to serve. */
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
  /** Of the weights, about. */
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
      tell(`No model is named, and there are ${memory}. Serve one of these?`);
      tell("(arrow keys or a number, then Enter; Esc leaves)");
      const index = await choose(linesOf(candidates), suggested(candidates, easy));
      if (index === undefined) return undefined;
      const { repo, isHere: isPulled } = candidates[index]!;
      const reasons = await problems(repo, engine, env);
      if (reasons.length === 0) {
        if (!isPulled) await pullShown(parseRepoName(repo)!, { env });
        return repo;
      }
      tell(`${repo} does not load here: ${reasons.join("; ")}`);
      candidates = candidates.filter((each) => each.repo !== repo);
    }
  } finally {
    await engine.stop();
  }
}

/** The popular ones that are for those who have none yet. */
export function offered(env: Environment): Candidate[] {
  return popularModels(env).flatMap(({ repo, bytes, isOffered }) =>
    isOffered && bytes !== undefined ? [{ repo, bytes, isHere: false }] : [],
  );
}

/** What can be served without a pull, last used first. */
function modelsHere(env: Environment): Candidate[] {
  return listRepos(hubCache(env))
    .filter(({ id }) => isHere(id, env))
    .toSorted((a, b) => b.modifiedMs - a.modifiedMs)
    .map(({ id, bytes }) => ({ repo: id, bytes, isHere: true }));
}

/** Whether a repo can be served without a pull. */
export function isHere(repo: string, env: Environment): boolean {
  try {
    resolveModel(repo, { env, allowPaths: false });
    return true;
  } catch {
    return false;
  }
}

/** Each once, without those whose weights leave no room. */
export function fitting(models: readonly Candidate[], limit: number): Candidate[] {
  return models
    .filter(({ repo }, i) => models.findIndex((each) => each.repo === repo) === i)
    .filter(({ bytes }) => neededBytes(bytes) <= limit);
}

/** For each token a CPU reads all of the weights: larger ones fit, but nobody would wait for them at first. */
const CPU_BYTES = 2.5e9;

/** What was used last; else the largest with weights of at most this size. */
export function suggested(candidates: readonly Candidate[], easyBytes: number): number {
  const index = candidates.findIndex(({ isHere, bytes }) => isHere || bytes <= easyBytes);
  return index < 0 ? candidates.length - 1 : index;
}

function linesOf(candidates: readonly Candidate[]): string[] {
  const width = Math.max(...candidates.map(({ repo }) => repo.length));
  return candidates.map(({ repo, bytes, isHere }) => {
    const size = formatBytes(bytes).padStart(8);
    return `${repo.padEnd(width)}  ${size}${isHere ? ", here" : " to download"}`;
  });
}

/** As `show` finds them, before anything is downloaded. */
async function problems(
  repo: string,
  engine: EngineClient,
  env: Environment,
): Promise<readonly string[]> {
  using opened = await openModel(repo, env);
  const { reasons } = await checkLoad(opened.source, engine);
  return reasons.map((reason) => withoutFolder(opened, reason));
}
