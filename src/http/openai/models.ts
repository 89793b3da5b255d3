// GET /v1/models and /v1/models/{id}
import type { Context } from "hono";
import type { Model, ModelList } from "../../api/openai/models.ts";
import { ModelNotFoundError } from "../../hub/hub-error.ts";
import type { ListedModel } from "../../serve/models.ts";
import type { HttpEnv } from "../frame/env.ts";
import type { Models } from "../frame/serving.ts";

export function listModels({ models }: Models) {
  return (c: Context<HttpEnv>): Response =>
    c.json({ object: "list", data: models.list().map(wireModel) } satisfies ModelList);
}

export function getModel({ models }: Models) {
  return (c: Context<HttpEnv>): Response => {
    const found = models.listed(c.req.param("id") ?? "");
    if (!found) throw new ModelNotFoundError("the model is not listed");
    return c.json(wireModel(found));
  };
}

function wireModel({ name, maxLength, createdMs }: ListedModel): Model {
  return {
    id: name,
    object: "model",
    created: Math.floor(createdMs / 1000),
    owned_by: name.includes("/") ? name.split("/")[0]! : "mlx-serve",
    // The context length is unknown until the model is loaded.
    ...(maxLength !== undefined && { max_model_len: maxLength }),
  };
}
