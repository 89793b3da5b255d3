import { describe, expect, test } from "bun:test";
import { EventStream, SlowReaderError } from "../../src/engine/stream.ts";

/** A stream that counts how often its reader left. */
function setUp() {
  const left = { times: 0 };
  const stream = new EventStream<number>(() => {
    left.times += 1;
  });
  return { stream, left };
}

/** Whether a promise is settled once everything that is ready has run. */
async function settled(promise: Promise<unknown>): Promise<boolean> {
  const pending = new Promise<"pending">((resolve) => setImmediate(resolve, "pending"));
  return (await Promise.race([promise, pending])) !== "pending";
}

describe("a stream of events", () => {
  test("gives them in the order they came in, then ends", async () => {
    const { stream, left } = setUp();
    for (const event of [1, 2, 3]) stream.push(event);
    stream.end();
    expect(await Array.fromAsync(stream)).toEqual([1, 2, 3]);
    expect(await stream.next()).toEqual({ done: true, value: undefined });
    expect(left.times).toBe(0);
  });

  test("tells how many were not read yet", async () => {
    const { stream } = setUp();
    expect(stream.backlog).toBe(0);
    stream.push(1);
    stream.push(2);
    expect(stream.backlog).toBe(2);
    await stream.next();
    expect(stream.backlog).toBe(1);
    await stream.next();
    expect(stream.backlog).toBe(0);
  });

  test("wakes a reader that waits for an event", async () => {
    const { stream } = setUp();
    const next = stream.next();
    expect(await settled(next)).toBe(false);
    stream.push(7);
    expect(await next).toEqual({ done: false, value: 7 });
  });

  test("wakes a reader that waits when it ends", async () => {
    const { stream } = setUp();
    const next = stream.next();
    expect(await settled(next)).toBe(false);
    stream.end();
    expect(await next).toEqual({ done: true, value: undefined });
  });

  test("fails for a reader that waits when it ends with an error", async () => {
    const { stream } = setUp();
    const next = stream.next();
    stream.end(new Error("lost"));
    expect(await next.catch(String)).toBe("Error: lost");
  });

  test("serves reads that wait side by side in their order", async () => {
    const { stream } = setUp();
    const reads = [stream.next(), stream.next(), stream.next()];
    stream.push(1);
    stream.push(2);
    stream.end();
    expect(await Promise.all(reads)).toEqual([
      { done: false, value: 1 },
      { done: false, value: 2 },
      { done: true, value: undefined },
    ]);
  });

  test("gives what came before an error, then the error", async () => {
    const { stream } = setUp();
    stream.push(1);
    stream.push(2);
    stream.end(new Error("lost"));
    const read: number[] = [];
    const reading = (async () => {
      for await (const event of stream) read.push(event);
    })();
    expect(await reading.catch(String)).toBe("Error: lost");
    expect(read).toEqual([1, 2]);
  });

  test("keeps its first end", async () => {
    const { stream } = setUp();
    stream.end();
    stream.end(new Error("too late"));
    expect(await stream.next()).toEqual({ done: true, value: undefined });
  });
});

describe("a reader that leaves", () => {
  test("before the end is told of once, and finds nothing more", async () => {
    const { stream, left } = setUp();
    stream.push(1);
    stream.push(2);
    for await (const event of stream) {
      expect(event).toBe(1);
      break;
    }
    expect(left.times).toBe(1);
    expect(stream.backlog).toBe(0);
    expect(await stream.return()).toEqual({ done: true, value: undefined });
    expect(await stream.next()).toEqual({ done: true, value: undefined });
    expect(left.times).toBe(1);
  });

  test("by an exception is told of too", async () => {
    const { stream, left } = setUp();
    stream.push(1);
    const reading = (async () => {
      for await (const _ of stream) throw new Error("the reader's own");
    })();
    expect(await reading.catch(String)).toBe("Error: the reader's own");
    expect(left.times).toBe(1);
  });

  test("after the end is not told of, though it left events unread", async () => {
    const { stream, left } = setUp();
    stream.push(1);
    stream.end();
    await stream.return();
    expect(left.times).toBe(0);
    expect(stream.backlog).toBe(0);
    expect(await stream.next()).toEqual({ done: true, value: undefined });
  });

  test("gets no events any more; the stream is over when its source has ended it", async () => {
    const { stream } = setUp();
    await stream.return();
    stream.push(1);
    expect(stream.backlog).toBe(0);
    expect(await settled(stream.over)).toBe(false);
    stream.end();
    expect(await settled(stream.over)).toBe(true);
  });

  test("while a read waits ends that read", async () => {
    const { stream } = setUp();
    const next = stream.next();
    await stream.return();
    expect(await next).toEqual({ done: true, value: undefined });
  });
});

describe("a stream", () => {
  test("can be read in one go: all that has come, then nothing at the end", async () => {
    const { stream } = setUp();
    for (const event of [1, 2, 3]) stream.push(event);
    expect(await stream.read()).toEqual([1, 2, 3]);
    const next = stream.read();
    expect(await settled(next)).toBe(false);
    stream.push(4);
    expect(await next).toEqual([4]);
    stream.end();
    expect(await stream.read()).toEqual([]);
  });

  test("is aborted when its reader falls too far behind, and keeps no events", async () => {
    const left = { times: 0 };
    const stream = new EventStream<number>(() => {
      left.times += 1;
    }, 2);
    for (const event of [1, 2]) stream.push(event);
    expect(left.times).toBe(0);
    stream.push(3);
    expect(left.times).toBe(1);
    expect(stream.backlog).toBe(0);
    await expect(stream.read()).rejects.toThrow(SlowReaderError);
  });

  test("that is left with an error fails its read, and is left once", async () => {
    const { stream, left } = setUp();
    const next = stream.read();
    stream.leave(new Error("on purpose"));
    await expect(next).rejects.toThrow("on purpose");
    stream.leave();
    expect(left.times).toBe(1);
  });
});
