import { describe, expect, test } from "bun:test";
import { type EventSource, streamResponse } from "../../../src/http/frame/event-stream.ts";

type Step = string | undefined | Error | { afterMs: number; text: string };

/** Takes these steps one after the other. */
function sourceOf(...steps: Step[]): EventSource & { closed: number } {
  let at = 0;
  return {
    closed: 0,
    async next() {
      const step = steps[at++];
      if (step instanceof Error) throw step;
      if (typeof step !== "object") return step;
      await Bun.sleep(step.afterMs);
      return step.text;
    },
    heartbeat: () => "beat;",
    failure: (error) => ((error as Error).message === "gone" ? undefined : "failed;"),
    close() {
      this.closed += 1;
    },
  };
}

const never = 60_000;
const streamed = (source: EventSource, heartbeatMs: number) =>
  streamResponse(source, { mediaType: "application/x-ndjson", heartbeatMs });

describe("a stream of events", () => {
  test("has the events in order, and is closed once", async () => {
    const source = sourceOf("a;", "", "b;", undefined);
    const response = await streamed(source, never);
    expect(response.headers.get("content-type")).toBe("application/x-ndjson");
    expect([await response.text(), source.closed]).toEqual(["a;b;", 1]);
  });

  test("has a heartbeat in every silence, also before the first event", async () => {
    const source = sourceOf({ afterMs: 100, text: "a;" }, { afterMs: 100, text: "b;" });
    const text = await (await streamed(source, 30)).text();
    expect(text).toMatch(/^(beat;)+a;(beat;)+b;$/);
  });

  test("has a heartbeat while there is progress that makes no event", async () => {
    const quiet = Array.from({ length: 40 }, () => ({ afterMs: 5, text: "" }));
    const text = await (await streamed(sourceOf("a;", ...quiet, "b;"), 30)).text();
    expect(text).toMatch(/^a;(beat;)+b;$/);
  });

  test("that fails before its first event is no stream", async () => {
    const source = sourceOf("", new Error("no"));
    await expect(streamed(source, never)).rejects.toThrow("no");
  });

  test("that fails later says so and ends", async () => {
    const source = sourceOf("a;", new Error("no"), "b;");
    const response = await streamed(source, never);
    expect([await response.text(), source.closed]).toEqual(["a;failed;", 1]);
  });

  test("whose client is gone ends without a word", async () => {
    const source = sourceOf("a;", new Error("gone"));
    const response = await streamed(source, never);
    await expect(response.text()).rejects.toThrow("gone");
    const cancelled = sourceOf("a;", "b;");
    await (await streamed(cancelled, never)).body!.cancel();
    expect(cancelled.closed).toBe(1);
  });
});
