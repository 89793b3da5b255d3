// The owner's routes that show models, keys, batches and the engine at work, and end requests.

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

export const ownerRoutes: readonly Route[] = [
  {
    method: "get",
    path: "/models",
    summary: "The models on this machine, how far each is loaded, and the memory there is",
    tag: "Models",
    response: ModelStates,
    errors: [503],
    access: "owner",
    isQuiet: true,
    handler: modelStates,
  },
  {
    method: "post",
    path: "/models/plan",
    summary: "What a model would take, and whether it fits, without loading it",
    tag: "Models",
    request: PlanRequest,
    response: PlanResponse,
    example: { model: "default" },
    errors: [...bodyErrors, 404, 503],
    access: "owner",
    handler: planModel,
  },
  {
    method: "get",
    path: "/engine/events",
    summary:
      "What the engine does, as it does it: steps, requests, blocks, latencies; `?follow=<x-request-id>` shows its blocks",
    tag: "Server",
    mediaType: "text/event-stream",
    event: EngineFeedEvent,
    dialect: openAiEvents,
    errors: [400],
    access: "owner",
    isQuiet: true,
    isClosedByDrain: true,
    handler: engineEvents,
  },
  {
    method: "get",
    path: "/keys",
    summary: "The keys with their tiers, limits and use",
    tag: "Server",
    response: KeyList,
    access: "owner",
    isQuiet: true,
    handler: listKeys,
  },
  {
    method: "post",
    path: "/keys",
    summary: "Make a key, which the response has this once",
    tag: "Server",
    request: AddKeyRequest,
    response: AddKeyResponse,
    example: { name: "alice", tier: "HIGH" },
    errors: [...bodyErrors, 409],
    access: "owner",
    handler: addKey,
  },
  {
    method: "post",
    path: "/keys/revoke",
    summary: "Accept a key of the keys file no longer",
    tag: "Server",
    request: RevokeKeyRequest,
    response: RevokeKeyResponse,
    example: { name: "alice" },
    errors: [...bodyErrors, 404],
    access: "owner",
    handler: revokeKey,
  },
  {
    method: "get",
    path: "/batches",
    summary: "The batches of all keys, the newest first",
    tag: "Files and batches",
    response: KeyBatches,
    errors: [400, 503],
    access: "owner",
    isQuiet: true,
    handler: listAllBatches,
  },
  {
    method: "post",
    path: "/batches/cancel",
    summary: "End a batch of any key early; what is answered stays",
    tag: "Files and batches",
    request: CancelBatchRequest,
    response: BatchObject,
    example: { id: "batch_abc" },
    errors: [...bodyErrors, 404, 503, 507],
    access: "owner",
    handler: cancelAnyBatch,
  },
  {
    method: "post",
    path: "/bench",
    summary: "Measure this server, as `mlx-serve bench` does, with progress and a picture",
    tag: "Server",
    mediaType: "text/event-stream",
    request: BenchRequest,
    event: BenchEvent,
    dialect: openAiEvents,
    example: { mode: "compare" },
    errors: [...bodyErrors, 404, 409],
    access: "owner",
    isClosedByDrain: true,
    handler: runBench,
  },
  {
    method: "post",
    path: "/requests/cancel",
    summary: "End a request that runs or waits",
    tag: "Server",
    request: CancelRequest,
    response: CancelResponse,
    example: { id: "req-1" },
    errors: [...bodyErrors, 404],
    access: "owner",
    handler: cancelRequest,
  },
];
