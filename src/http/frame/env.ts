// What middleware and handlers share about one request.
import type { Caller } from "../../keys/key-ring.ts";
import type { Lease } from "../../keys/limiter.ts";
import type { Dialect } from "./dialect.ts";
import type { RequestRecord } from "./request-record.ts";

export type HttpEnv = {
  Variables: {
    /** How the route's errors are written. */
    dialect: Dialect;
    /** What the request's log line will say. */
    record: RequestRecord;
    /** Set by `authenticate`; absent only on open routes. */
    caller: Caller;
    /** Whether it is a line of a batch. */
    isLine?: boolean;
    /** Set by `limit`; absent on routes that are not limited. */
    lease?: Lease;
  };
};
