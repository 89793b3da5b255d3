// Opens a model for inspection: from this machine, or its metadata from the hub.
import { HubError, ModelNotFoundError } from "../../hub/hub-error.ts";
import { fullName } from "../../hub/popular-models.ts";
import { parseRepoName } from "../../hub/repo-name.ts";
import { type Environment, hubEndpoint, isOffline } from "../../hub/settings.ts";
import { resolveModel } from "../../hub/source.ts";
import { type HollowModel, hollowModel } from "../../serve/hollow-model.ts";

export type OpenedModel = Pick<HollowModel, "source" | typeof Symbol.dispose> & {
  /** Temporary folder and URL of a repo on the hub; absent if the model is on this machine. */
  readonly hub?: { readonly folder: string; readonly address: string };
};

export async function openModel(name: string, env: Environment): Promise<OpenedModel> {
  try {
    return { source: resolveModel(name, { env }), [Symbol.dispose]() {} };
  } catch (error) {
    const repo = parseRepoName(fullName(name, env));
    if (!(error instanceof ModelNotFoundError) || !repo?.id.includes("/") || isOffline(env)) {
      throw error;
    }
    const { folder, ...hollow } = await hollowModel(name, repo, env).catch((reason: unknown) => {
      if (!(reason instanceof HubError)) throw reason;
      throw new HubError(`${name} is not in the cache, and ${reason.message}`);
    });
    return { ...hollow, hub: { folder, address: `${hubEndpoint(env)}/${repo.id}` } };
  }
}

/** Replaces the path of the temporary folder, which means nothing to users, by the hub's URL. */
export function withoutFolder({ hub }: OpenedModel, text: string): string {
  return hub ? text.replaceAll(hub.folder, hub.address) : text;
}
