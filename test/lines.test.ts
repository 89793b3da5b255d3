import { expect, test } from "bun:test";
import { eventData } from "../src/lines.ts";

test("events are read whole, however their bytes were cut", async () => {
  const text =
    ': still here\n\ndata: {"a": "Grüße 👋\u2028"}\n\nevent: x\r\ndata: one\r\ndata:two\r\n\r\n' +
    "id: 7\n\ndata: [DONE]\n\ndata: never ended";
  const bytes = new TextEncoder().encode(text);
  for (let size = 1; size <= bytes.length; size++) {
    const body = new ReadableStream<Uint8Array<ArrayBuffer>>({
      start(controller) {
        for (let i = 0; i < bytes.length; i += size) controller.enqueue(bytes.slice(i, i + size));
        controller.close();
      },
    });
    expect(await Array.fromAsync(eventData(body))).toEqual([
      '{"a": "Grüße 👋\u2028"}',
      "one\ntwo",
      "[DONE]",
    ]);
  }
});
