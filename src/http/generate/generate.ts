// The handler of every generating API: its codec turns the request into a conversation, and the reply's events into the
// response, streamed or whole.
import type { Context, Handler } from "hono";
import { withoutAgentMarks } from "../../conversation/agent-marks.ts";
import type { Conversation } from "../../conversation/conversation.ts";
import { saltOf } from "../../conversation/engine-request.ts";
import type { AnswerEvents, End } from "../../conversation/events.ts";
import { messageAt } from "../../conversation/message-at.ts";
import { preparePrompt } from "../../conversation/prompt.ts";
import { openReply, type Reply } from "../../conversation/reply.ts";
import type { Priority } from "../../engine/protocol.ts";
import { SlowReaderError } from "../../engine/stream.ts";
import type { ServedModel } from "../../serve/models.ts";
import type { EncodeWork } from "../../text/encoder/encode-work.ts";
import type { Dialect } from "../frame/dialect.ts";
import type { HttpEnv } from "../frame/env.ts";
import { apiErrorOf, ClientGoneError } from "../frame/errors.ts";
import { type EventSource, streamResponse } from "../frame/event-stream.ts";
import { readRequest } from "../frame/json-body.ts";
import { PREFIX_HEADER, prefixHash } from "../frame/prefix-hash.ts";
import { levelOf, lowestOf } from "../frame/priority.ts";
import type { Generating } from "../frame/serving.ts";
import type { Codec, ResponseWriter } from "./codec.ts";
import { Generation } from "./generation.ts";

/** Creates a codec's handler. `ceiling`: the route's maximum priority, regardless of the caller's tier. */
export function generate<T extends { stream: boolean }>(codec: Codec<T>) {
  return (serving: Generating, ceiling: Priority): Handler<HttpEnv> =>
    async (c) => {
      const request = await readRequest(c, serving, codec.request);
      // Yields to other requests: for thousands of messages, reading and converting them take tens of ms each.
      await new Promise(setImmediate);
      return await answered(c, serving, ceiling, codec, request);
    };
}

/** Answers a parsed request. */
export async function answered<T extends { stream: boolean }>(
  c: Context<HttpEnv>,
  serving: Generating,
  ceiling: Priority,
  codec: Codec<T>,
  request: T,
): Promise<Response> {
  const { conversation: asked, writer: newWriter } = codec.exchange(request, serving, c);
  const conversation = withoutAgentMarks(asked, serving.settings);
  const { name: key, tier } = c.get("caller");
  const priority = lowestOf(tier, ceiling, conversation.priority ?? "HIGH");
  const generation = new Generation(c, serving, priority);
  try {
    const model = await generation.use(conversation.model, conversation.keepAliveMs);
    const encode = (work: EncodeWork) => generation.encode(model, work);
    const prompt = await preparePrompt(conversation, model, encode);
    if (serving.settings.logPrompts) c.get("record").prompt = textOf(model, prompt.tokens);
    const reply = await openReply(conversation, prompt, {
      ...serving,
      model,
      given: {
        name: c.get("record").id,
        priority,
        client: generation.client,
        salt: saltOf(key, conversation.cacheSalt),
      },
      grammarClient: { key, level: levelOf(priority), signal: generation.signal },
      maxBacklog: request.stream ? serving.settings.streamBuffer : undefined,
      begin: (make) =>
        generation.begin(make, (at) => fieldOf(conversation, model, prompt.tokens, at)),
    });
    const created = Math.floor(Date.now() / 1000);
    const { tokens: prompts } = prompt;
    const writer = newWriter({ created, model, priority, prompts, reply });
    if (request.stream) {
      const source = eventSource(c, generation, reply, writer, codec.dialect);
      const { streamType: mediaType } = codec.dialect;
      const response = await streamResponse(source, {
        mediaType,
        heartbeatMs: serving.heartbeatMs,
      });
      generation.continues();
      return withPrefixHash(response, conversation);
    }
    const answers = await reply.whole();
    c.get("record").finish = finishOf(answers.map(({ end }) => end));
    generation.end();
    return withPrefixHash(c.json(writer.whole(answers, reply.usage)), conversation);
  } catch (error) {
    generation.end(error);
    throw error;
  }
}

function withPrefixHash(response: Response, conversation: Conversation): Response {
  const hash = prefixHash(conversation);
  if (hash !== undefined) response.headers.set(PREFIX_HEADER, hash);
  return response;
}

function eventSource(
  c: Context<HttpEnv>,
  generation: Generation,
  reply: Reply,
  writer: ResponseWriter,
  { eventText, streamEnd }: Dialect,
): EventSource {
  const ends: End[] = [];
  let [opened, done] = [false, false];
  let failure: unknown;
  const textOf = (events: readonly object[]) => events.map(eventText).join("");
  const opening = () => {
    if (opened) return [];
    opened = true;
    return writer.opening();
  };
  return {
    async next() {
      if (done) return undefined;
      const read = await reply.read();
      for (const { events } of read) ends.push(...endsIn(events));
      const events = [...opening(), ...read.flatMap((said) => writer.events(said))];
      if (read.length > 0) return textOf(events);
      done = true;
      return textOf(writer.closing(reply.usage)) + streamEnd;
    },
    heartbeat() {
      if (!writer.heartbeat) return ": still here\n\n";
      return textOf([...opening(), writer.heartbeat()]);
    },
    failure(error) {
      failure = error;
      const isUnread = error instanceof ClientGoneError || error instanceof SlowReaderError;
      return isUnread ? undefined : textOf(writer.failure(apiErrorOf(error))) + streamEnd;
    },
    close() {
      c.get("record").finish = finishOf(ends);
      // A stream that closes early without an error means that the client has disconnected.
      generation.end(failure ?? (done ? undefined : new ClientGoneError()));
    },
  };
}

function endsIn(events: AnswerEvents["events"]): End[] {
  return events.filter((event) => event.kind === "end");
}

function finishOf(ends: readonly End[]): string {
  return [...new Set(ends.map(({ reason }) => reason))].join(",");
}

/** Returns the request field that the token at index `at` of a chat's prompt comes from. */
function fieldOf(
  { prompt }: Conversation,
  { text }: ServedModel,
  [tokens]: readonly Uint32Array[],
  at: number,
): string | undefined {
  if (prompt.kind !== "chat" || !tokens) return undefined;
  return messageAt(prompt, tokens, at, text.tokenizer);
}

function textOf({ text }: ServedModel, prompts: readonly Uint32Array[]): string[] {
  return prompts.map((prompt) => text.tokenizer.decode(prompt, { skipControl: false }));
}
