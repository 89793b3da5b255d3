import { expect, test } from "bun:test";
import type { EngineEvent, EngineRequest } from "../../src/engine/protocol.ts";
import { EventStream } from "../../src/engine/stream.ts";
import { FailedAnswerError } from "../../src/serve/answers.ts";
import { Prefills } from "../../src/serve/prefills.ts";

/** An engine that answers nothing by itself. */
function setUp(count: number, shareHead = false) {
  const streams: EventStream<EngineEvent>[] = [];
  const requests: EngineRequest[] = [];
  let left = 0;
  const submit = (_: string, request: EngineRequest) => {
    const stream = new EventStream<EngineEvent>(() => {
      left += 1;
    });
    streams.push(stream);
    requests.push(request);
    return stream;
  };
  const prefills = new Prefills(
    { submit },
    {
      model: "tiny",
      requests: Array.from({ length: count }, (_, i) => ({
        prompt: Uint32Array.of(i, i),
        sampling: { temperature: 0 },
      })),
      shareHead,
    },
  );
  const event = { index: 0, finished: "length", cachedTokens: 1 } as const;
  /** Answers what was submitted last, and lets the reader go on. */
  const answer = async (from: number) => {
    for (const [i, stream] of streams.slice(from).entries()) {
      stream.push({ ...event, token: 7, logits: [from + i] });
    }
    await Bun.sleep(0);
  };
  return { prefills, streams, requests, event, answer, left: () => left };
}

test("a long list is computed a few at a time, and what was read is in its order", async () => {
  const { prefills, streams, requests, answer } = setUp(70);
  const reading = prefills.read();
  const submitted: number[] = [];
  while (streams.length > (submitted.at(-1) ?? 0)) {
    submitted.push(streams.length);
    await answer(submitted.at(-2) ?? 0);
  }
  expect(submitted).toEqual([32, 64, 70]);
  expect((await reading).map(({ logits }) => logits![0])).toEqual(
    Array.from({ length: 70 }, (_, i) => i),
  );
  expect(requests.every(({ maxTokens }) => maxTokens === 1)).toBe(true);
  expect(prefills.usage).toEqual({ promptTokens: 140, cachedTokens: 70, completionTokens: 0 });
});

test("the first of prompts that begin alike is computed before the others", async () => {
  const { prefills, streams, answer } = setUp(3, true);
  const reading = prefills.read();
  expect(streams).toHaveLength(1);
  await answer(0);
  expect(streams).toHaveLength(3);
  await answer(1);
  expect(await reading).toHaveLength(3);
});

test("a prompt that cannot be computed fails all, and an abort ends those under way", async () => {
  const failing = setUp(2);
  const failed = failing.prefills.read();
  failing.streams[1]!.push({ ...failing.event, token: undefined, finished: "error" });
  await expect(failed).rejects.toThrow(FailedAnswerError);
  const { prefills, streams, left } = setUp(40);
  const reading = prefills.read();
  prefills.abort(new Error("gone"));
  await expect(reading).rejects.toThrow("gone");
  expect([streams.length, left()]).toEqual([32, 32]);
});
