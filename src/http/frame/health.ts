// GET /health: whether the server can answer requests, and if not, the reason.
import type { Context } from "hono";
import type { Health } from "../../api/owner/health.ts";
import type { HttpEnv } from "./env.ts";
import type { Runtime } from "./serving.ts";

export function health(serving: Runtime) {
  return (c: Context<HttpEnv>): Response => {
    const health = healthOf(serving);
    return c.json(health, health.status === "ok" ? 200 : 503);
  };
}

export function healthOf(serving: Runtime): Health {
  const activity = activityOf(serving);
  const { uncaughtErrors: count } = serving;
  const errors = count > 0 && { uncaught_errors: count };
  return { ...stateOf(serving), ...(activity && { activity }), ...errors };
}

/** Returns the current activity. A compilation's total is unknown; its kernel's name is omitted. */
function activityOf({ admission, engine: { activity } }: Runtime): Health["activity"] {
  if (admission.phase === "draining") return { kind: "drain", requests: admission.count };
  return activity?.kind === "compile" ? { kind: "compile", done: activity.done } : activity;
}

function stateOf({ admission, engine, models, ranks }: Runtime): Health {
  const isDraining = admission.phase === "draining";
  if (isDraining) return { status: "draining", reason: "the server is shutting down" };
  if (!engine.alive) return { status: "down", reason: "the engine has ended" };
  const group = ranks?.status();
  if (group && !group.isFormed) {
    return { status: group.loss === undefined ? "loading" : "down", reason: group.reason };
  }
  if (models.isLoading) return { status: "loading", reason: "the model is being loaded" };
  if (models.hasFailed) return { status: "down", reason: "the model cannot be loaded" };
  const refusal = ranks?.refusalOf(models.main);
  if (refusal !== undefined) return { status: "down", reason: refusal };
  return { status: "ok" };
}
