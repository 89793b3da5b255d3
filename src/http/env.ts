// What the app's middlewares and handlers share of one request.
import type { Caller } from "../keys/key-ring.ts";
import type { Lease } from "../keys/limiter.ts";
import type { RequestRecord } from "./request-log.ts";

export type HttpEnv = {
  Bindings: { server?: Bun.Server<unknown> | undefined };
  Variables: {
    /** What the log will tell of it. */
    record: RequestRecord;
    /** Set behind `authenticate`; /health alone gets by without. */
    caller: Caller;
    /** Set behind `limit`. */
    lease: Lease;
  };
};
