// Turns one answer's text into events, with the parser of the model's format.
import type { AnswerPiece } from "../serve/answer-text.ts";
import type { Call, MessageParser, MessagePart, ToolFormat } from "../tools/syntax/format.ts";
import type { Part } from "./conversation.ts";
import type { Answer, AnswerEvent, AnswerEvents, End } from "./events.ts";

/** Parser of an answer's text, and the source of ids for calls. Calls beyond `maxCalls` are dropped. */
export type MessageReader = Pick<ToolFormat, "newCallId"> & {
  parser: MessageParser;
  maxCalls: number;
};

export class MessageEvents {
  readonly #reader: MessageReader;
  readonly #ids = new Set<string>();
  #calls = 0;
  /** Number of the call in progress; undefined if there is none, or if it is dropped (`maxCalls`). */
  #open: number | undefined;
  #isThinking = false;
  #thoughtTokens = 0;

  constructor(reader: MessageReader) {
    this.#reader = reader;
  }

  push(piece: AnswerPiece): AnswerEvents {
    const { index, text, tokens, scores, finished, stop } = piece;
    const { parser } = this.#reader;
    const events = parser.push(text).flatMap((part) => this.#events(part));
    if (finished) {
      const isCutOff = finished === "length";
      events.push(...parser.end(isCutOff).flatMap((part) => this.#events(part)));
      events.push({ kind: "end", reason: this.reasonOf(finished), stop });
    }
    const [last] = events.slice(-1);
    if (last) this.#isThinking = last.kind === "thought";
    if (this.#isThinking) this.#thoughtTokens += tokens.length;
    return { index, events, tokens, scores };
  }

  /** Number of tokens in thoughts; approximate at the border between thought and text. */
  get thoughtTokens(): number {
    return this.#thoughtTokens;
  }

  /** Returns why the answer ended: "calls" only if its last call is complete and the token limit was not reached. */
  reasonOf(finished: "stop" | "length"): End["reason"] {
    const isComplete = this.#calls > 0 && this.#open === undefined;
    return finished === "stop" && isComplete ? "calls" : finished;
  }

  #events(part: MessagePart): AnswerEvent[] {
    switch (part.kind) {
      case "content":
        return [{ kind: "text", text: part.text }];
      case "reasoning":
        return [{ kind: "thought", text: part.text }];
      case "call": {
        this.#open = undefined;
        if (this.#calls >= this.#reader.maxCalls) return [];
        const call = this.#calls++;
        this.#open = call;
        return [{ kind: "call", call, id: this.#idOf(part), name: part.name }];
      }
    }
    const call = this.#open;
    if (call === undefined) return [];
    if (part.kind === "arguments") return [{ kind: "arguments", call, text: part.text }];
    this.#open = undefined;
    return [{ kind: "call_end", call }];
  }

  /** Returns the id that the model gave the call, or a new one if it gave none or a duplicate. */
  #idOf({ id }: Pick<Call, "id">): string {
    const own = id === undefined || this.#ids.has(id) ? this.#reader.newCallId() : id;
    this.#ids.add(own);
    return own;
  }
}

/** Assembles an answer from its events. */
export class AnswerBuilder {
  readonly #answer;

  constructor(index: number) {
    this.#answer = {
      index,
      parts: [] as Part[],
      tokens: [] as number[],
      scores: [] as AnswerEvents["scores"][number][],
      end: { reason: "stop" } as End,
    };
  }

  add({ events, tokens, scores }: AnswerEvents): void {
    this.#answer.tokens.push(...tokens);
    this.#answer.scores.push(...scores);
    for (const event of events) this.#addEvent(event);
  }

  /** Answer assembled so far. */
  get answer(): Answer {
    return this.#answer;
  }

  #addEvent(event: AnswerEvent): void {
    const { parts } = this.#answer;
    const last = parts.at(-1);
    switch (event.kind) {
      case "text":
      case "thought":
        if (last?.kind === event.kind) last.text += event.text;
        else parts.push({ kind: event.kind, text: event.text });
        return;
      case "call":
        parts.push({ kind: "call", id: event.id, name: event.name, arguments: "", isCutOff: true });
        return;
      case "arguments":
        // Calls never overlap, so the arguments belong to the last one.
        if (last?.kind === "call") last.arguments += event.text;
        return;
      case "call_end":
        if (last?.kind === "call") delete last.isCutOff;
        return;
      case "end":
        this.#answer.end = { reason: event.reason, stop: event.stop };
    }
  }
}
