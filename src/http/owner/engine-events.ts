// GET /engine/events: streams the engine's feed.
import type { Context } from "hono";
import { openAiEvents } from "../frame/dialect.ts";
import type { HttpEnv } from "../frame/env.ts";
import { badRequest } from "../frame/errors.ts";
import { type EventSource, streamResponse } from "../frame/event-stream.ts";
import type { Generating } from "../frame/serving.ts";

export function engineEvents({ feed, admission, heartbeatMs }: Generating) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const followed = c.req.query("follow");
    if (followed !== undefined && followed.length > 128) {
      throw badRequest("follow", "Invalid 'follow': expected an x-request-id.");
    }
    const listener = feed.listen(followed);
    const source: EventSource = {
      // Ends the stream while the server drains: shutdown does not wait for clients that only watch.
      next: async () => (admission.phase === "draining" ? undefined : await listener.read()),
      heartbeat: () => ": still here\n\n",
      failure: () => undefined,
      close: () => listener.close(),
    };
    c.req.raw.signal.addEventListener("abort", () => listener.close());
    return await streamResponse(source, { mediaType: openAiEvents.streamType, heartbeatMs });
  };
}
