// An answer's pieces as OpenAI's chat API tells them, through the conversation's events.
import {
  AnswerBuilder,
  MessageEvents,
  type MessageReader,
} from "../../src/conversation/message-events.ts";
import { deltasOf, finishReasons, messageOf } from "../../src/http/generate/message-deltas.ts";
import type { AnswerPiece } from "../../src/serve/answer-text.ts";

export class MessageDeltas {
  readonly #events: MessageEvents;

  constructor(reader: MessageReader) {
    this.#events = new MessageEvents(reader);
  }

  push(piece: AnswerPiece) {
    return this.#events.push(piece).events.flatMap(deltasOf);
  }

  whole(piece: AnswerPiece) {
    const builder = new AnswerBuilder(piece.index);
    builder.add(this.#events.push(piece));
    return messageOf(builder.answer.parts);
  }

  finishReason(finished: "stop" | "length") {
    return finishReasons[this.#events.reasonOf(finished)];
  }
}
