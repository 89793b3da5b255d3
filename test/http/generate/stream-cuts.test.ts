// Streams of chat and text completions that the client leaves after any of their events.
import { expect, test } from "bun:test";
import { ChatChunk } from "../../../src/api/openai/chat.ts";
import { CompletionChunk } from "../../../src/api/openai/completions.ts";
import { leaveAtEachEvent } from "../../support/stream-reads.ts";
import { useTestServer } from "../../support/use-server.ts";

const server = useTestServer();

const common = { max_tokens: 12, ignore_eos: true, temperature: 0, n: 2, stream: true };
const streams = [
  ["/v1/chat/completions", ChatChunk, { messages: [{ role: "user", content: "Hi" }] }],
  ["/v1/completions", CompletionChunk, { prompt: "Once upon" }],
] as const;

test.each(streams)("%s cut at every event leaves nothing", async (path, schema, fields) => {
  const total = await leaveAtEachEvent(server, path, { ...common, ...fields }, (text) =>
    text
      .split("\n\n")
      .slice(0, -1)
      .map((event) => {
        expect(event).toStartWith("data: ");
        return event === "data: [DONE]" || schema.parse(JSON.parse(event.slice(6)));
      }),
  );
  expect(total).toBeGreaterThan(8);
});
