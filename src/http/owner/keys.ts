// /keys: the API keys with their tiers, limits and usage. A key is returned only when it is created; the keys file
// stores its hash.
import type { Context } from "hono";
import {
  AddKeyRequest,
  type AddKeyResponse,
  type KeyList,
  RevokeKeyRequest,
  type RevokeKeyResponse,
} from "../../api/owner/keys.ts";
import type { Environment } from "../../hub/settings.ts";
import {
  addKey as addToFile,
  KeyEntry,
  type KeyFile,
  keyFileOf,
  readKeyFile,
  revokeKey as revokeInFile,
} from "../../keys/key-file.ts";
import type { HttpEnv } from "../frame/env.ts";
import { ApiError, badRequest } from "../frame/errors.ts";
import { readRequest } from "../frame/json-body.ts";
import { noUse } from "../frame/metrics.ts";
import type { BodyReader, Keys } from "../frame/serving.ts";

export function listKeys({ ring, metrics }: Keys) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const use = await metrics.use();
    return c.json({
      needs_key: !ring.open,
      keys: ring.callers.map(({ name, tier, owner, limiter }) => {
        const { requests, promptTokens, cachedTokens, generatedTokens } = use.get(name) ?? noUse;
        const { requestsPerMinute, tokensPerMinute, concurrent } = limiter.limits;
        return {
          ...{ name, tier, owner, requests },
          limits: {
            requests_per_minute: requestsPerMinute ?? null,
            tokens_per_minute: tokensPerMinute ?? null,
            concurrent: concurrent ?? null,
          },
          active: limiter.active,
          prompt_tokens: promptTokens,
          cached_tokens: cachedTokens,
          generated_tokens: generatedTokens,
        };
      }),
    } satisfies KeyList);
  };
}

export function addKey(serving: BodyReader & Keys & { env: Environment }) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const { name, tier, limits } = await readRequest(c, serving, AddKeyRequest);
    const { error } = KeyEntry.shape.name.safeParse(name);
    if (error) throw badRequest("name", `Invalid 'name': ${error.issues[0]!.message}.`);
    if (serving.ring.open) {
      const message =
        "The server is open, and its first key would lock out all clients, including the owner: start it with --api-key.";
      throw new ApiError(409, message, { code: "no_keys" });
    }
    const path = keyFileOf(serving.settings, serving.env);
    const key = addToFile(path, { name, tier, limits });
    if (key === undefined) {
      const message = `A key named ${name} already exists: revoke it or choose another name.`;
      throw new ApiError(409, message, { param: "name", code: "key_exists" });
    }
    applyKeys(serving, readKeyFile(path));
    const made: AddKeyResponse = { name, object: "key", key };
    return c.json(made, 200, { "Cache-Control": "no-store" });
  };
}

/** Revokes a key; its running requests continue. */
export function revokeKey(serving: BodyReader & Keys & { env: Environment }) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const { name } = await readRequest(c, serving, RevokeKeyRequest);
    const path = keyFileOf(serving.settings, serving.env);
    if (!readKeyFile(path) || !revokeInFile(path, name)) {
      const message =
        "The keys file has no key of this name; it does not contain keys of --api-key.";
      throw new ApiError(404, message, { param: "name", code: "key_not_found" });
    }
    applyKeys(serving, readKeyFile(path));
    return c.json({ name, object: "key", revoked: true } satisfies RevokeKeyResponse);
  };
}

/** Applies a keys file immediately, and forgets the usage of removed keys. */
export function applyKeys({ ring, metrics }: Keys, keys: KeyFile | undefined): void {
  if (keys) ring.reload(keys);
  void metrics.keepKeys(ring.names);
}
