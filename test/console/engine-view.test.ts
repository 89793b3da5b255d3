// What the engine's page notes of a request that it follows.
import { expect, test } from "bun:test";
import type { StateEvent, StepsEvent } from "../../src/api/owner/engine.ts";
import { after, type EngineView } from "../../src/console/engine/engine-view.ts";

const view: EngineView = {
  ...{ connection: "open", problem: "", state: undefined, steps: [], ended: [], lost: 0 },
  story: {
    ...{ id: "one", lines: [], promptTokens: 0, decodeTokens: 0, steps: 0 },
    ...{ hasDecoded: false, preemptions: 0 },
  },
};

const step = (number: number, rows?: number[]): StepsEvent["steps"][number] => ({
  ...{ model: "m", step: number, ms: 1, preempted: 0, running: 2, waiting: 0 },
  ...(rows && { rows }),
});

const stateWith = (preemptions: number) =>
  ({ type: "state", requests: [{ id: "one", preemptions }] }) as unknown as StateEvent;

test("a followed request is told from its prompt to its end, with what is told once for several steps", () => {
  const steps: StepsEvent = {
    type: "steps",
    requests: ["one", "other"],
    // A chunk of its prompt beside another's token, then two steps of both.
    steps: [step(1, [0, 5, 1, 1, 1, 0]), step(2, [0, 1, 0, 1, 1, 0]), step(3)],
    ended: [],
    left_out: 0,
  };
  let now = after(view, steps, 10);
  expect(now.steps.map(({ promptTokens, decodeTokens }) => [promptTokens, decodeTokens])).toEqual([
    ...[[5, 1]],
    ...[[0, 2]],
    ...[[0, 2]],
  ]);
  expect(now.story).toMatchObject({ promptTokens: 5, decodeTokens: 2, steps: 3 });
  for (const preemptions of [0, 1, 1]) now = after(now, stateWith(preemptions), 20);
  const ended = [{ id: "one", outcome: "done" as const, finish: "stop", ms: 40 }];
  now = after(now, { ...steps, steps: [], ended }, 30);
  expect(now.story!.lines).toEqual([
    { atMs: 10, text: "step 1 computes 5 tokens of the prompt" },
    { atMs: 10, text: "step 2 is its first to decode" },
    { atMs: 20, text: "preempted: it waits, and will be recomputed" },
    { atMs: 30, text: "done (stop), after 40 ms" },
  ]);
});
