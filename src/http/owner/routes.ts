// The owner's routes for models, keys, batches, benchmarks, the engine's feed and cancellation.
import { BatchObject, CancelBatchRequest, KeyBatches } from "../../api/openai/batches.ts";
import {
  CancelRequest,
  CancelResponse,
  ModelStates,
  PlanRequest,
  PlanResponse,
} from "../../api/owner/admin.ts";
import { BenchEvent, BenchRequest } from "../../api/owner/bench.ts";
import { EngineFeedEvent } from "../../api/owner/engine.ts";
import {
  AddKeyRequest,
  AddKeyResponse,
  KeyList,
  RevokeKeyRequest,
  RevokeKeyResponse,
} from "../../api/owner/keys.ts";
import { openAiEvents } from "../frame/dialect.ts";
import { bodyErrors, type Route } from "../frame/route.ts";
import { cancelAnyBatch, listAllBatches } from "../openai/batches.ts";
import { cancelRequest } from "./admin.ts";
import { runBench } from "./bench.ts";
import { engineEvents } from "./engine-events.ts";
import { addKey, listKeys, revokeKey } from "./keys.ts";
import { modelStates, planModel } from "./model-states.ts";

const routes: readonly Omit<Route, "access">[] = [
  {
    method: "get",
    path: "/models",
    summary: "The models on this machine with their load state, and the available memory",
    tag: "Models",
    response: ModelStates,
    errors: [503],
    isQuiet: true,
    handler: modelStates,
  },
  {
    method: "post",
    path: "/models/plan",
    summary: "Estimate a model's memory and whether it fits, without loading it",
    tag: "Models",
    request: PlanRequest,
    response: PlanResponse,
    example: { model: "default" },
    errors: [...bodyErrors, 404, 503],
    handler: planModel,
  },
  {
    method: "get",
    path: "/engine/events",
    summary:
      "Stream the engine's activity: steps, requests, blocks, latencies; `?follow=<x-request-id>` adds a request's blocks",
    tag: "Server",
    mediaType: "text/event-stream",
    event: EngineFeedEvent,
    dialect: openAiEvents,
    errors: [400],
    isQuiet: true,
    isClosedByDrain: true,
    handler: engineEvents,
  },
  {
    method: "get",
    path: "/keys",
    summary: "The API keys with their tiers, limits and usage",
    tag: "Server",
    response: KeyList,
    isQuiet: true,
    handler: listKeys,
  },
  {
    method: "post",
    path: "/keys",
    summary: "Create an API key; only this response contains it",
    tag: "Server",
    request: AddKeyRequest,
    response: AddKeyResponse,
    example: { name: "alice", tier: "HIGH" },
    errors: [...bodyErrors, 409],
    handler: addKey,
  },
  {
    method: "post",
    path: "/keys/revoke",
    summary: "Revoke a key of the keys file",
    tag: "Server",
    request: RevokeKeyRequest,
    response: RevokeKeyResponse,
    example: { name: "alice" },
    errors: [...bodyErrors, 404],
    handler: revokeKey,
  },
  {
    method: "get",
    path: "/batches",
    summary: "The batches of all keys, newest first",
    tag: "Files and batches",
    response: KeyBatches,
    errors: [400, 503],
    isQuiet: true,
    handler: listAllBatches,
  },
  {
    method: "post",
    path: "/batches/cancel",
    summary: "Cancel a batch of any key; completed answers are kept",
    tag: "Files and batches",
    request: CancelBatchRequest,
    response: BatchObject,
    example: { id: "batch_abc" },
    errors: [...bodyErrors, 404, 503, 507],
    handler: cancelAnyBatch,
  },
  {
    method: "post",
    path: "/bench",
    summary: "Measure this server, as `mlx-serve bench` does, with progress and a chart",
    tag: "Server",
    mediaType: "text/event-stream",
    request: BenchRequest,
    event: BenchEvent,
    dialect: openAiEvents,
    example: { mode: "compare" },
    errors: [...bodyErrors, 404, 409],
    isClosedByDrain: true,
    handler: runBench,
  },
  {
    method: "post",
    path: "/requests/cancel",
    summary: "Cancel a running or waiting request",
    tag: "Server",
    request: CancelRequest,
    response: CancelResponse,
    example: { id: "req-1" },
    errors: [...bodyErrors, 404],
    handler: cancelRequest,
  },
];

export const ownerRoutes = routes.map((route): Route => ({ ...route, access: "owner" }));
