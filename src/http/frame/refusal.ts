// Error responses.
import type { Context } from "hono";
import { openAi } from "./dialect.ts";
import type { HttpEnv } from "./env.ts";
import { apiErrorOf } from "./errors.ts";

/** Creates the response to an error, in the route's dialect, and records the error for the log. */
export function refusalResponse(c: Context<HttpEnv>, error: unknown): Response {
  const answer = apiErrorOf(error);
  const dialect = c.get("dialect") ?? openAi;
  const record = c.get("record");
  if (record) {
    record.reason = answer.reason;
    record.error ??= answer.message;
  }
  const { status, body } = dialect.refusal(answer, record?.id);
  return Response.json(body, { status, headers: answer.headers });
}
