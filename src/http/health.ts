// GET /health: whether a request would be answered now, and why not.
import type { Context } from "hono";
import type { Health } from "../api/health.ts";
import type { HttpEnv } from "./env.ts";
import type { Serving } from "./serving.ts";

export function health({ admission, engine }: Serving) {
  return (c: Context<HttpEnv>): Response => {
    const health = healthOf(admission.phase, engine.alive);
    return c.json(health, health.status === "ok" ? 200 : 503);
  };
}

function healthOf(phase: Serving["admission"]["phase"], isAlive: boolean): Health {
  if (phase === "draining") return { status: "draining", reason: "the server is shutting down" };
  if (!isAlive) return { status: "down", reason: "the engine has ended" };
  if (phase === "loading") return { status: "loading", reason: "the model is being loaded" };
  return { status: "ok" };
}
