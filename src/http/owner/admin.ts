// The owner's endpoints for the server's state and for loading and unloading models.
import type { Context } from "hono";
import type { Model } from "../../api/openai/models.ts";
import {
  CancelRequest,
  type CancelResponse,
  LoadRequest,
  type PsResponse,
  UnloadRequest,
  type UnloadResponse,
} from "../../api/owner/admin.ts";
import { collectiveMs } from "../../engine/protocol.ts";
import type { ModelSource } from "../../hub/source.ts";
import { ModelLoadError, NoRoomError } from "../../serve/models.ts";
import type { HttpEnv } from "../frame/env.ts";
import { ApiError } from "../frame/errors.ts";
import { readRequest } from "../frame/json-body.ts";
import type { BodyReader, Models, Runtime } from "../frame/serving.ts";

export function loadModel(serving: BodyReader & Models) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const { model: name } = await readRequest(c, serving, LoadRequest);
    const model = await serving.models.get(name).catch((error: unknown) => {
      if (!(error instanceof ModelLoadError)) throw error;
      const reason = withoutPath(error.message, serving.models.sourceOf(name));
      throw new ApiError(500, `The model cannot be loaded: ${reason}`);
    });
    return c.json({
      id: model.name,
      object: "model",
      created: Math.floor(Date.now() / 1000),
      owned_by: "mlx-serve",
      max_model_len: model.info.maxLength,
    } satisfies Model);
  };
}

/** Removes the model's path from an error message: the owner sees errors, but no client sees file locations. */
export const withoutPath = (reason: string, { path }: Pick<ModelSource, "path">) =>
  reason.replaceAll(path, "the model");

export function unloadModel(serving: BodyReader & Models) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const { model: name } = await readRequest(c, serving, UnloadRequest);
    if (!(await unload(serving, name))) {
      throw new ApiError(409, "The model is not loaded.", { param: "model", code: "not_loaded" });
    }
    return c.json({ id: name, object: "model", unloaded: true } satisfies UnloadResponse);
  };
}

/** Unloads a model; returns false if it was not loaded. */
export async function unload({ models }: Models, name: string): Promise<boolean> {
  return await models.unload(name).catch((error: unknown) => {
    if (!(error instanceof NoRoomError)) throw error;
    throw new ApiError(409, "The model is answering requests.", {
      param: "model",
      code: "at_work",
    });
  });
}

export function ps(serving: Runtime) {
  return async (c: Context<HttpEnv>): Promise<Response> => c.json(await psOf(serving));
}

export async function psOf({ models, engine, ranks }: Runtime): Promise<PsResponse> {
  const stats = await engine.stats();
  const loaded = models.loaded();
  return {
    models: stats.flatMap((each) => {
      const of = loaded.find(({ info }) => info.model === each.model);
      if (!of) return [];
      const { info, load, blocks, slots } = of;
      return [
        {
          name: info.model,
          dtype: info.dtype,
          weight_bytes: info.weightBytes,
          kv_bytes: info.kvBytes,
          active_bytes: each.activeBytes,
          max_model_len: info.maxLength,
          running: load.running,
          waiting: load.waiting,
          blocks,
          slots: slots && {
            total: slots.total,
            free: slots.free,
            held: slots.held,
            snapshots: slots.cached,
            bytes: slots.bytes,
          },
          steps: each.steps,
          preemptions: each.preemptions,
          prompt_tokens: each.promptTokens,
          cached_tokens: each.cachedTokens,
          generated_tokens: each.generatedTokens,
          collectives: each.traffic && {
            count: each.traffic.collectives,
            sent_bytes: each.traffic.bytes,
            ms: collectiveMs(each.traffic),
          },
        },
      ];
    }),
    ranks: ranks?.status().ranks,
    requests: stats.flatMap(({ model, requests }) =>
      requests.map((request) => ({
        model,
        id: request.name ?? String(request.id),
        index: request.index,
        state: request.state,
        tier: request.priority,
        standing: request.standing,
        age_ms: request.ageMs,
        prompt_tokens: request.promptTokens,
        cached_tokens: request.cachedTokens,
        generated_tokens: request.generated,
        preemptions: request.preemptions,
        blocks: request.blocks,
      })),
    ),
  };
}

export function cancelRequest(serving: BodyReader & Runtime) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const { id } = await readRequest(c, serving, CancelRequest);
    const error = new ApiError(409, "The server's owner has cancelled the request.", {
      code: "cancelled",
    });
    if (!serving.admission.cancel(id, error)) {
      throw new ApiError(404, "There is no such request.", { param: "id" });
    }
    return c.json({ id, object: "request", cancelled: true } satisfies CancelResponse);
  };
}
