// GET /models and POST /models/plan: the models with their load state, and the memory a model would need.
import type { Context } from "hono";
import { type ModelStates, PlanRequest, type PlanResponse } from "../../api/owner/admin.ts";
import { EngineError } from "../../engine/client.ts";
import type { EngineReport, ModelPlan } from "../../engine/protocol.ts";
import { totalBytes } from "../../hub/bytes.ts";
import { neededBytes, popularModels } from "../../hub/popular-models.ts";
import { type Environment, isOffline } from "../../hub/settings.ts";
import type { ListedModel } from "../../serve/models.ts";
import type { HttpEnv } from "../frame/env.ts";
import { readRequest } from "../frame/json-body.ts";
import type { BodyReader, Models, Runtime } from "../frame/serving.ts";
import { withoutPath } from "./admin.ts";
import { knownOf, sourceOf } from "./known-models.ts";

export function modelStates(serving: Runtime) {
  const { models, engine, env } = serving;
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const { memory } = await engine.inspect();
    const listed: ModelStates["models"] = [];
    for (const each of models.list()) {
      listed.push(...stateOf(serving, each, memory.roomBytes));
      // Yields to the event loop between models, since reading the headers of weights is slow.
      await new Promise((resolve) => setImmediate(resolve));
    }
    return c.json({
      memory: wireMemory(memory),
      models: listed,
      popular: popularOf(env, listed, memory.roomBytes),
    } satisfies ModelStates);
  };
}

/** Returns the model's state; none if its name is ambiguous, because the folder has several GGUF files. */
function stateOf(
  { models, engine }: Runtime,
  { name, maxLength }: ListedModel,
  roomBytes: number,
): ModelStates["models"] {
  const source = sourceOf(models, name);
  if (!source) return [];
  const { state, uses } = models.stateOf(name);
  const { activity } = engine;
  const load = activity?.kind === "load" && activity.model === name ? activity : undefined;
  const about = knownOf(source)?.description;
  const fileBytes = totalBytes(about?.files ?? []);
  return [
    {
      name,
      state,
      uses,
      is_main: name === models.main,
      ...(load && { loaded_bytes: load.done, total_bytes: load.total }),
      file_bytes: fileBytes,
      fits: state === "loaded" || neededBytes(fileBytes) <= roomBytes,
      format: source.kind === "gguf" ? "gguf" : "safetensors",
      architecture: about?.architecture,
      parameters: about?.parameters,
      quantization: about?.quantization,
      dtype: about?.dtype,
      context_length: about?.contextLength,
      max_model_len: maxLength,
    },
  ];
}

function popularOf(
  env: Environment,
  here: ModelStates["models"],
  roomBytes: number,
): ModelStates["popular"] {
  if (isOffline(env)) return [];
  return popularModels(env)
    .filter(({ repo }) => !here.some(({ name }) => name === repo))
    .map(({ name, repo, bytes, context }) => ({
      ...{ name, repo, bytes },
      context_length: context,
      fits: bytes === undefined ? undefined : neededBytes(bytes) <= roomBytes,
    }));
}

export function wireMemory({ totalBytes, usableBytes, roomBytes }: EngineReport["memory"]) {
  return {
    total_bytes: Math.round(totalBytes),
    usable_bytes: Math.round(usableBytes),
    room_bytes: Math.round(roomBytes),
  };
}

export function planModel(serving: BodyReader & Models) {
  const { models } = serving;
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const { model } = await readRequest(c, serving, PlanRequest);
    // Throws a 404 error for an unknown model, before planning.
    const source = models.sourceOf(model);
    const planned = await models.plan(model).then(
      (plan) => wirePlan(model, plan),
      (error: unknown): PlanResponse => {
        if (!(error instanceof EngineError)) throw error;
        return { model, fits: false, problem: withoutPath(error.message, source) };
      },
    );
    return c.json(planned);
  };
}

function wirePlan(model: string, plan: ModelPlan): PlanResponse {
  return {
    model,
    fits: plan.refusal === undefined,
    problem: plan.refusal,
    dtype: plan.dtype,
    weight_bytes: Math.round(plan.weightBytes),
    kv_bytes: Math.round(plan.kvBytes),
    step_bytes: Math.round(plan.stepBytes),
    max_model_len: plan.maxLength,
    memory_limit_bytes: Math.round(plan.memoryLimitBytes),
  };
}
