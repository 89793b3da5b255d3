// The variables that middleware and handlers share per request.
import type { Caller } from "../../keys/key-ring.ts";
import type { Lease } from "../../keys/limiter.ts";
import type { Dialect } from "./dialect.ts";
import type { RequestRecord } from "./request-record.ts";

export type HttpEnv = {
  Variables: {
    /** The vendor's format of errors and stream events that the route uses. */
    dialect: Dialect;
    /** Fields of the request's log line. */
    record: RequestRecord;
    /** The authenticated API key. Set by `authenticate`; absent only on open routes. */
    caller: Caller;
    /** Whether the request is a line of a batch. */
    isLine?: boolean;
    /** Counts the request against its key's limits until it ends. Set by `limit`; absent on routes without limits. */
    lease?: Lease;
  };
};
