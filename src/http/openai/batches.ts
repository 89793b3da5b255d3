// /v1/batches: files of requests, answered at low priority. A key sees only its own batches; the owner may read all.
import type { Context } from "hono";
import {
  type BatchList,
  type BatchObject,
  BatchQuery,
  BatchRequest,
  CancelBatchRequest,
  type KeyBatches,
  windowSeconds,
} from "../../api/openai/batches.ts";
import { type Batch, nowSeconds } from "../../batch/batch.ts";
import type { HttpEnv } from "../frame/env.ts";
import { ApiError, badRequest } from "../frame/errors.ts";
import { readRequest } from "../frame/json-body.ts";
import { type LazyBatches, storageError } from "../frame/lazy-batches.ts";
import type { BatchStore, BodyReader } from "../frame/serving.ts";
import { listOf } from "./files.ts";

export function createBatch(serving: BodyReader & BatchStore) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const request = await readRequest(c, serving, BatchRequest);
    const batches = serving.batches.open;
    const owner = c.get("caller").name;
    const { endpoint, input_file_id: inputFile, completion_window: window } = request;
    if (!batches.endpoints.includes(endpoint)) {
      const message = `Invalid 'endpoint': expected one of ${batches.endpoints.join(", ")}.`;
      throw badRequest("endpoint", message, "invalid_value");
    }
    if (batches.store.file(owner, inputFile)?.purpose !== "batch") {
      const message = "Invalid 'input_file_id': expected an uploaded file of this key.";
      throw badRequest("input_file_id", message, "file_not_found");
    }
    const { maxBatches } = serving.settings;
    if (batches.store.unfinished(owner).length >= maxBatches) {
      const message = `The key already has the maximum of ${maxBatches} unfinished batches: wait for one or cancel one.`;
      throw badRequest(undefined, message, "batch_limit_exceeded");
    }
    try {
      const batch = batches.create({
        owner,
        endpoint,
        inputFile,
        window,
        expiresAt: nowSeconds() + windowSeconds(window)!,
        metadata: request.metadata,
        outputSeconds: request.output_expires_after?.seconds,
      });
      return c.json(wireBatch(batch));
    } catch (error) {
      throw storageError(error);
    }
  };
}

export function listBatches({ batches }: BatchStore) {
  return (c: Context<HttpEnv>): Response => {
    const page = BatchQuery.parse(c.req.query());
    const { data, hasMore } = batches.open.store.batches(c.get("caller").name, page);
    return c.json(listOf(data.map(wireBatch), hasMore) satisfies BatchList);
  };
}

export function getBatch({ batches }: BatchStore) {
  return (c: Context<HttpEnv>): Response => c.json(wireBatch(readableBatch(c, batches)));
}

export function cancelBatch({ batches }: BatchStore) {
  return (c: Context<HttpEnv>): Response => {
    return c.json(cancelled(batches, ownBatch(c, batches)));
  };
}

/** Lists the batches of all keys, newest first. */
export function listAllBatches({ batches }: BatchStore) {
  return (c: Context<HttpEnv>): Response => {
    const page = BatchQuery.parse(c.req.query());
    const found = batches.existing?.store.batches(undefined, page);
    return c.json({
      batches: (found?.data ?? []).map((batch) => ({ key: batch.owner, ...wireBatch(batch) })),
      has_more: found?.hasMore ?? false,
    } satisfies KeyBatches);
  };
}

/** Cancels a batch of any key. */
export function cancelAnyBatch(serving: BodyReader & BatchStore) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const { id } = await readRequest(c, serving, CancelBatchRequest);
    const batch = serving.batches.existing?.store.batch(id);
    if (!batch) throw noBatch("GET /batches lists all batches.");
    return c.json(cancelled(serving.batches, batch));
  };
}

function cancelled(batches: LazyBatches, batch: Batch): BatchObject {
  try {
    return wireBatch(batches.open.cancel(batch));
  } catch (error) {
    throw storageError(error);
  }
}

function noBatch(hint: string): ApiError {
  const details = { param: "id", code: "batch_not_found" };
  return new ApiError(404, `The batch does not exist: ${hint}`, details);
}

/** Returns the batch in the path; throws if it belongs to another key, as if it did not exist. */
function ownBatch(c: Context<HttpEnv>, batches: LazyBatches): Batch {
  const batch = batchOf(c, batches);
  if (batch?.owner === c.get("caller").name) return batch;
  throw noBatch(ownHint);
}

function readableBatch(c: Context<HttpEnv>, batches: LazyBatches): Batch {
  const batch = c.get("caller").owner ? batchOf(c, batches) : ownBatch(c, batches);
  if (batch) return batch;
  throw noBatch(ownHint);
}

const ownHint = "GET /v1/batches lists the batches of this key.";

const batchOf = (c: Context<HttpEnv>, batches: LazyBatches) =>
  batches.open.store.batch(c.req.param("id") ?? "");

function wireBatch(batch: Batch): BatchObject {
  const { at, faults } = batch;
  return {
    id: batch.id,
    object: "batch",
    endpoint: batch.endpoint ?? "",
    errors: faults.length > 0 ? { object: "list", data: [...faults] } : null,
    input_file_id: batch.inputFile,
    completion_window: batch.window,
    status: batch.status,
    output_file_id: batch.outputFile ?? null,
    error_file_id: batch.errorFile ?? null,
    created_at: batch.createdAt,
    in_progress_at: at.in_progress ?? null,
    expires_at: batch.expiresAt ?? null,
    finalizing_at: at.finalizing ?? null,
    completed_at: at.completed ?? null,
    failed_at: at.failed ?? null,
    expired_at: at.expired ?? null,
    cancelling_at: at.cancelling ?? null,
    cancelled_at: at.cancelled ?? null,
    request_counts: batch.counts,
    metadata: batch.metadata ?? null,
  };
}
