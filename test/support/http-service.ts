// A listener on a free port, for tests of HTTP without an engine behind it.
import { errorResponse } from "../../src/http/frame/errors.ts";
import { Listener, type ListenerOptions } from "../../src/http/wire/listener.ts";
import { makeLogger } from "../../src/log.ts";

export function listen(
  answer: (request: Request) => Response | Promise<Response>,
  idleMs = 30_000,
  more: Partial<ListenerOptions> = {},
): Listener {
  return new Listener({
    hostname: "127.0.0.1",
    port: 0,
    idleMs,
    answer,
    refuse: (error) => errorResponse(error),
    log: makeLogger({ level: "error", format: "json" }),
    ...more,
  });
}
