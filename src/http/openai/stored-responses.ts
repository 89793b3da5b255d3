// GET and DELETE /v1/responses/{id}, GET /v1/responses/{id}/input_items
import type { Context } from "hono";
import type { StoredResponse, StoredResponses } from "../../serve/stored-responses.ts";
import type { HttpEnv } from "../frame/env.ts";
import { ApiError, badRequest } from "../frame/errors.ts";
import { listOf } from "./files.ts";

type Responses = { responses: StoredResponses };

export function getResponse(serving: Responses) {
  return (c: Context<HttpEnv>): Response => {
    if (c.req.query("stream") === "true") {
      const message = "Invalid 'stream': stored responses cannot be streamed.";
      throw badRequest("stream", message, "unsupported_parameter");
    }
    return c.json(stored(serving, c).response);
  };
}

export function deleteResponse({ responses }: Responses) {
  return (c: Context<HttpEnv>): Response => {
    const id = c.req.param("id")!;
    if (!responses.delete(c.get("caller").name, id)) throw noSuchResponse();
    return c.json({ id, object: "response", deleted: true });
  };
}

const MAX_PAGE = 100;
const PAGE = 20;

export function listInputItems(serving: Responses) {
  return (c: Context<HttpEnv>): Response => {
    const { limit = PAGE, order = "desc", after } = c.req.query();
    const count = Number(limit);
    if (!Number.isInteger(count) || count < 1 || count > MAX_PAGE) {
      throw badRequest("limit", `Invalid 'limit': expected 1 to ${MAX_PAGE}.`, "invalid_value");
    }
    if (order !== "asc" && order !== "desc") {
      throw badRequest("order", "Invalid 'order': expected asc or desc.", "invalid_value");
    }
    const input = stored(serving, c).input as readonly { id: string }[];
    const ordered = order === "asc" ? input : input.toReversed();
    const last = ordered.findIndex(({ id }) => id === after);
    if (after !== undefined && last < 0) {
      throw badRequest("after", "Invalid 'after': the response has no such item.", "invalid_value");
    }
    const from = last + 1;
    const data = ordered.slice(from, from + count);
    return c.json(listOf(data, from + count < ordered.length));
  };
}

function stored({ responses }: Responses, c: Context<HttpEnv>): StoredResponse {
  const found = responses.find(c.get("caller").name, c.req.param("id")!);
  if (!found) throw noSuchResponse();
  return found;
}

function noSuchResponse(): ApiError {
  return new ApiError(404, "The response does not exist or is no longer stored.", {
    code: "response_not_found",
  });
}
