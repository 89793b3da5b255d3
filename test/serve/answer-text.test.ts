import { describe, expect, test } from "bun:test";
import type { EngineEvent } from "../../src/engine/protocol.ts";
import { type AnswerPiece, AnswerText } from "../../src/serve/answer-text.ts";
import { openTextModel } from "../../src/text/text-model.ts";
import { writeChatModel } from "../support/chat-model.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const folder = temporaryFolder();
writeChatModel(folder);
const { tokenizer } = openTextModel(folder);

/** A token a byte, the last one with the reason why it ended. */
function eventsOf(text: string, finished?: EngineEvent["finished"], logprob?: number) {
  const ids = tokenizer.encode(text, { controlTokens: "text" });
  return ids.map(
    (token, i): EngineEvent => ({
      index: 0,
      token,
      logprob,
      top: logprob === undefined ? undefined : [],
      finished: i === ids.length - 1 ? finished : undefined,
      cachedTokens: 0,
    }),
  );
}

const make = (stops: string[] = [], minTokens = 0) =>
  new AnswerText(3, tokenizer, { stops, minTokens });

/** Event by event: what was sent, and what it came to. */
function send(answer: AnswerText, events: EngineEvent[]) {
  const pieces = events.flatMap((event) => answer.push([event]) ?? []);
  return {
    pieces,
    texts: pieces.map(({ text }) => text),
    text: pieces.map(({ text }) => text).join(""),
    tokens: pieces.flatMap(({ tokens }) => tokens),
    scored: pieces.flatMap(({ scores }) => scores.map(({ token }) => tokenizer.decode([token]))),
    last: pieces.at(-1) as AnswerPiece,
  };
}

const stopToken: EngineEvent = { index: 0, token: 258, finished: "stop", cachedTokens: 0 };

describe("the text of an answer", () => {
  test("comes as it is made, under its index, and ends with the reason", () => {
    const answer = make();
    const { pieces, texts } = send(answer, eventsOf("abc", "length"));
    expect(texts).toEqual(["a", "b", "c"]);
    const first = { index: 3, text: "a", tokens: [97], scores: [], finished: undefined };
    expect(pieces[0]).toEqual(first);
    expect(pieces.at(-1)!.finished).toBe("length");
    expect(answer.finished).toBe(true);
    expect(answer.count).toBe(3);
  });

  test("of several events at once is one piece", () => {
    const piece = make().push(eventsOf("abc"));
    expect(piece).toMatchObject({ text: "abc", tokens: { length: 3 }, finished: undefined });
  });

  test("leaves out the token that ended it, but counts and tells it", () => {
    const answer = make();
    const { text, tokens, last } = send(answer, [...eventsOf("a"), stopToken]);
    expect(text).toBe("a");
    expect(tokens.at(-1)).toBe(258);
    expect(last.finished).toBe("stop");
    expect(answer.count).toBe(2);
  });

  test("holds half a character back, with its token, and sends it whole", () => {
    const { texts, pieces } = send(make(), eventsOf("é🙂"));
    expect(texts).toEqual(["é", "🙂"]);
    expect(pieces.map(({ tokens }) => tokens.length)).toEqual([2, 4]);
  });

  test("shows a character that never got its last byte as such", () => {
    const answer = make();
    const [first] = eventsOf("é");
    expect(send(answer, [{ ...first!, finished: "length" }]).text).toBe("\uFFFD");
  });
});

describe("a stop string", () => {
  test("over several tokens ends the answer, and nothing of it is sent", () => {
    const answer = make(["END"]);
    const { texts, last } = send(answer, eventsOf("oneENDtwo"));
    expect(texts.join("")).toBe("one");
    expect(last.finished).toBe("stop");
    // Those up to the one that completed it.
    expect(answer.count).toBe(6);
  });

  test("that does not come about is text after all", () => {
    expect(send(make(["END"]), eventsOf("oEN", "length")).text).toBe("oEN");
    expect(send(make(["END"]), eventsOf("oENd")).text).toBe("oENd");
  });

  test("completed by the character that was flushed last is not sent", () => {
    const answer = make(["x\uFFFD"]);
    const [first] = eventsOf("é");
    const { text, last } = send(answer, [...eventsOf("ax"), { ...first!, finished: "length" }]);
    expect(text).toBe("a");
    expect(last.finished).toBe("stop");
  });

  test("counts only after the least number of tokens", () => {
    expect(send(make(["b"], 3), eventsOf("abcabc", "length")).text).toBe("abca");
  });
});

describe("log-probabilities", () => {
  test("go with the text that they are of", () => {
    const answer = make(["END"]);
    const { pieces } = send(answer, eventsOf("aEx", undefined, -1));
    expect(pieces.map(({ text, scores }) => [text, scores.length])).toEqual([
      ["a", 1],
      ["Ex", 2],
    ]);
    expect(pieces[1]!.scores.map(({ begin }) => begin)).toEqual([1, 2]);
  });

  test("of a stop string's tokens and of the end token are not told", () => {
    expect(send(make(["END"]), eventsOf("oneEND", undefined, -1)).scored).toEqual(["o", "n", "e"]);
    const withEnd = [...eventsOf("a", undefined, -1), { ...stopToken, logprob: -2, top: [] }];
    expect(send(make(), withEnd).scored).toEqual(["a"]);
  });

  test("of text that was held back to the end are told", () => {
    expect(send(make(["END"]), eventsOf("EN", "length", -1)).scored).toEqual(["E", "N"]);
  });
});
