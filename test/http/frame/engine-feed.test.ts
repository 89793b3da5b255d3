// The engine's feed: nothing while nobody listens, never a wait for a listener, and the same as /ps and /metrics.
import { describe, expect, test } from "bun:test";
import { PsResponse } from "../../../src/api/owner/admin.ts";
import {
  EngineFeedEvent,
  type StateEvent,
  type StepsEvent,
} from "../../../src/api/owner/engine.ts";
import type { StepReport } from "../../../src/engine/protocol.ts";
import { EngineFeed } from "../../../src/http/frame/engine-feed.ts";
import { settled, useTestServer } from "../../support/use-server.ts";

const report = (step: number): StepReport => ({
  model: "m",
  step,
  ms: 1.234,
  rows: 2,
  prefillTokens: 5,
  decodeTokens: 1,
  preempted: 0,
  running: 2,
  waiting: 0,
  blocks: { total: 1, free: 1, cached: 0, held: 0, shared: 0 },
  snapshots: { hits: 0, misses: 0 },
  rowTokens: Int32Array.of(7, 5, 1, 8, 1, 0),
});

const STEPS_MS = 10;

/** Without an engine. */
function fakeFeed() {
  const watched: boolean[] = [];
  const names = new Map([[7, "seven"]]);
  const engine = {
    watch: (isWatched: boolean) => void watched.push(isWatched),
    nameOf: (id: number) => names.get(id),
  };
  let states = 0;
  const feed = new EngineFeed(
    engine,
    async () => {
      states += 1;
      return { type: "state" } as StateEvent;
    },
    STEPS_MS,
  );
  return { feed, watched, states: () => states };
}

/** The events of a text. */
const parsed = (text: string | undefined) =>
  (text ?? "")
    .split("\n\n")
    .filter((part) => part.startsWith("event: "))
    .map((part) => JSON.parse(part.slice(part.indexOf("data: ") + 6)));

describe("the feed", () => {
  test("asks nothing of the engine while nobody listens", async () => {
    const { feed, watched, states } = fakeFeed();
    feed.step(report(1));
    feed.ended({ id: "r" }, "done", 1);
    await Bun.sleep(10 * STEPS_MS);
    expect([watched, states()]).toEqual([[], 0]);
    const [one, two] = [feed.listen(undefined), feed.listen(undefined)];
    one.close();
    expect(watched).toEqual([true]);
    two.close();
    two.close();
    expect(watched).toEqual([true, false]);
    const before = states();
    await Bun.sleep(10 * STEPS_MS);
    expect(states()).toBe(before);
  });

  test("tells steps by the names of their requests, and nothing from before", async () => {
    const { feed } = fakeFeed();
    feed.step(report(1));
    const listener = feed.listen(undefined);
    expect(parsed(await listener.read())).toEqual([{ type: "state" }]);
    feed.step(report(2));
    expect(parsed(await listener.read())).toEqual([
      {
        type: "steps",
        requests: ["seven", "8"],
        steps: [
          {
            ...{ model: "m", step: 2, ms: 1.23, preempted: 0, running: 2, waiting: 0 },
            rows: [0, 5, 1, 1, 1, 0],
          },
        ],
        ended: [],
        left_out: 0,
      },
    ]);
    listener.close();
    expect(await listener.read()).toBeUndefined();
  });

  test("tells rows where they change, once in an event, by model", async () => {
    const { feed } = fakeFeed();
    const listener = feed.listen(undefined);
    const others = Int32Array.of(8, 1, 0);
    const reports = [
      ...[report(1), report(2), { ...report(1), model: "n" }],
      ...[{ ...report(3), rowTokens: others }, report(4), { ...report(2), model: "n" }],
    ];
    for (const each of reports) feed.step(each);
    const rowsOf = async () => {
      await Bun.sleep(3 * STEPS_MS);
      const event = parsed(await listener.read()).find(({ type }) => type === "steps");
      return (event as StepsEvent).steps.map(({ rows }) => rows);
    };
    const both = [0, 5, 1, 1, 1, 0];
    expect(await rowsOf()).toEqual([both, undefined, both, [1, 1, 0], both, undefined]);
    // A listener may have lost the event before.
    feed.step(report(5));
    expect(await rowsOf()).toEqual([both]);
    listener.close();
  });

  test("keeps the newest steps for a listener that does not read, and tells how many it lost", async () => {
    const { feed } = fakeFeed();
    const listener = feed.listen(undefined);
    // An event has a step or two, and 20 events are kept.
    for (let step = 0; step < 60; step++) {
      feed.step(report(step));
      await Bun.sleep(STEPS_MS);
    }
    await Bun.sleep(2 * STEPS_MS);
    const events = parsed(await listener.read());
    listener.close();
    expect(events[0]).toEqual({ type: "lost", steps: expect.any(Number) });
    const kept = events.filter(({ type }) => type === "steps") as StepsEvent[];
    expect(kept).toHaveLength(20);
    const told = kept.flatMap(({ steps }) => steps.map((each) => each.step));
    expect(told).toEqual(told.map((_, i) => told[0]! + i));
    expect(told[0]).toBe(events[0].steps);
    expect(events.filter(({ type }) => type === "state")).toHaveLength(1);
  });

  test("is bounded where steps are many", async () => {
    const { feed } = fakeFeed();
    const listener = feed.listen(undefined);
    for (let step = 0; step < 1000; step++) feed.step(report(step));
    await Bun.sleep(5 * STEPS_MS);
    const steps = parsed(await listener.read()).find(({ type }) => type === "steps") as StepsEvent;
    listener.close();
    expect([steps.steps.length, steps.left_out]).toEqual([100, 900]);
  });
});

describe("GET /engine/events", () => {
  const server = useTestServer({ args: ["--max-batch-size", "4"] }, settled);

  /** Events until the test has seen enough of them. */
  async function watch(path = "/engine/events") {
    const controller = new AbortController();
    const response = await server.get(path, { signal: controller.signal });
    expect(response.headers.get("content-type")).toStartWith("text/event-stream");
    const events: EngineFeedEvent[] = [];
    const reading = (async () => {
      const decoder = new TextDecoder();
      let rest = "";
      for await (const chunk of response.body!) {
        const parts = (rest + decoder.decode(chunk, { stream: true })).split("\n\n");
        rest = parts.pop()!;
        events.push(...parsed(parts.join("\n\n")).map((event) => EngineFeedEvent.parse(event)));
      }
    })().catch(() => {});
    return {
      events,
      of: <T extends EngineFeedEvent["type"]>(type: T) =>
        events.filter((event): event is EngineFeedEvent & { type: T } => event.type === type),
      async close() {
        controller.abort();
        await reading;
      },
    };
  }

  async function until(isTrue: () => boolean): Promise<void> {
    const deadline = performance.now() + 10_000;
    while (!isTrue()) {
      if (performance.now() > deadline) throw new Error("it does not come");
      await Bun.sleep(20);
    }
  }

  const chat = (i: number, init: RequestInit = {}, more: object = {}) =>
    server.post(
      "/v1/chat/completions",
      {
        messages: [{ role: "user", content: `Request ${i} with a text of its own` }],
        max_tokens: 20 + i,
        ignore_eos: true,
        ...more,
      },
      { ...init, headers: { "x-request-id": `request-${i}` } },
    );

  test("follows 16 requests, and agrees with /ps and /metrics", async () => {
    const feed = await watch();
    const usages = await Promise.all(
      Array.from(
        { length: 16 },
        async (_, i) => (await (await chat(i)).json()) as { usage: Usage },
      ),
    );
    await until(() => feed.of("steps").flatMap(({ ended }) => ended).length === 16);
    const states = feed.of("state").length;
    await until(() => feed.of("state").length > states + 1);
    await feed.close();
    // Every token that was computed is in a row of a step, under the name of its request.
    const prompts = new Map<string, number>();
    const decoded = new Map<string, number>();
    for (const { requests, steps } of feed.of("steps")) {
      let rows: number[] = [];
      for (const step of steps) {
        rows = step.rows ?? rows;
        for (let at = 0; at < rows.length; at += 3) {
          const [name, counts] = [requests[rows[at]!]!, rows[at + 2] ? prompts : decoded];
          counts.set(name, (counts.get(name) ?? 0) + rows[at + 1]!);
        }
      }
    }
    for (const [i, { usage }] of usages.entries()) {
      const cached = usage.prompt_tokens_details.cached_tokens;
      expect(prompts.get(`request-${i}`)).toBe(usage.prompt_tokens - cached);
      // The last token is generated, and not computed with.
      expect(decoded.get(`request-${i}`)).toBe(usage.completion_tokens - 1);
    }
    const steps = feed.of("steps").flatMap((event) => event.steps);
    expect(steps.map(({ step }) => step)).toEqual(steps.map((_, i) => steps[0]!.step + i));
    expect(Math.max(...steps.map(({ running }) => running))).toBe(4);
    expect(Math.max(...steps.map(({ waiting }) => waiting))).toBeGreaterThan(8);
    const ended = feed.of("steps").flatMap((event) => event.ended);
    expect(ended.map(({ id }) => id).sort()).toEqual(usages.map((_, i) => `request-${i}`).sort());
    expect(new Set(ended.map(({ outcome, finish }) => `${outcome} ${finish}`))).toEqual(
      new Set(["done length"]),
    );
    const { type: _, admitted, memory, latency, maps, ...state } = feed.of("state").at(-1)!;
    const ps = PsResponse.parse(await (await server.get("/ps")).json());
    expect(state).toEqual(ps);
    expect(admitted).toBe(0);
    expect(memory.usable_bytes).toBeLessThanOrEqual(memory.total_bytes);
    expect(state.models[0]!.steps).toBe(await server.metric("mlx_serve_step_seconds_count"));
    expect(state.models[0]!.generated_tokens).toBe(
      await server.metric("mlx_serve_generated_tokens_total"),
    );
    const [map] = maps;
    const { blocks } = state.models[0]!;
    expect(map!.cells.length * map!.blocks_per_cell).toBeGreaterThanOrEqual(blocks.total);
    if (map!.blocks_per_cell === 1) {
      expect([...map!.cells].filter((cell) => cell === "c")).toHaveLength(blocks.cached);
      expect([...map!.cells].filter((cell) => cell === ".")).toHaveLength(blocks.free);
    }
    for (const { name, counts, count } of latency) {
      const metric = `mlx_serve_${name}_seconds_count`;
      expect([name, count]).toEqual([name, await server.metric(metric)]);
      expect(counts.reduce((sum, each) => sum + each, 0)).toBe(count);
    }
    expect(latency.filter(({ count }) => count > 0)).toHaveLength(4);
  });

  test("shows what runs, its blocks, and its end when it is cancelled", async () => {
    const answer = chat(99, {}, { max_tokens: 3000 });
    const feed = await watch("/engine/events?follow=request-99");
    await until(() =>
      feed.of("state").some(({ maps }) => (maps[0]?.followed[0]?.cells.length ?? 0) > 1),
    );
    const state = feed.of("state").findLast(({ maps }) => maps[0]!.followed.length > 0)!;
    const [request] = state.requests;
    expect(request).toMatchObject({ id: "request-99", state: "running", tier: "NORMAL" });
    const { followed, cells, blocks_per_cell } = state.maps[0]!;
    expect(followed[0]!.id).toBe("request-99");
    for (const cell of followed[0]!.cells) expect(cells[cell]).toBe("h");
    if (blocks_per_cell === 1) {
      expect([...cells].filter((cell) => cell === "h")).toHaveLength(followed[0]!.cells.length);
    }
    const cancelled = await server.post("/requests/cancel", { id: "request-99" });
    expect(await cancelled.json()).toEqual({
      ...{ id: "request-99", object: "request", cancelled: true },
    });
    const refused = await answer;
    expect([refused.status, await refused.json()]).toEqual([
      409,
      { error: expect.objectContaining({ code: "cancelled" }) },
    ]);
    await until(() => feed.of("steps").some(({ ended }) => ended.length > 0));
    const [end] = feed.of("steps").flatMap(({ ended }) => ended);
    expect(end).toMatchObject({ id: "request-99", outcome: "refused" });
    await feed.close();
    expect((await server.post("/requests/cancel", { id: "request-99" })).status).toBe(404);
  });

  test("holds nobody when its client does not read", async () => {
    const response = await server.get("/engine/events");
    const before = await server.metric("mlx_serve_generated_tokens_total");
    await Promise.all(Array.from({ length: 8 }, async (_, i) => (await chat(i)).json()));
    expect(await server.metric("mlx_serve_generated_tokens_total")).toBe(before + 8 * 20 + 28);
    await response.body!.cancel();
  });
});

type Usage = {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details: { cached_tokens: number };
};
