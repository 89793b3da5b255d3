// Makes text of one answer's tokens: characters that are whole, up to a stop string, each token's
// log-probability with the text that it is part of.
import type { EngineEvent, TokenLogprob } from "../engine/protocol.ts";
import { Detokenizer } from "../text/detokenizer.ts";
import { StopStrings } from "../text/stop.ts";
import type { Tokenizer } from "../text/tokenizer.ts";

export type TokenScore = {
  token: number;
  logprob: number;
  top: readonly TokenLogprob[];
  /** Where its text begins in the answer's. */
  begin: number;
};

/** What can be sent of an answer. */
export type AnswerPiece = {
  index: number;
  text: string;
  tokens: number[];
  /** Of the tokens whose text is sent; empty where none are asked for. */
  scores: TokenScore[];
  finished: "stop" | "length" | undefined;
};

export type AnswerTextOptions = {
  stops: readonly string[];
  /** Control tokens that are part of the text. */
  markers?: readonly string[];
  /** Stop strings count from so many tokens on. */
  minTokens: number;
};

export class AnswerText {
  readonly #index: number;
  readonly #detokenizer: Detokenizer;
  readonly #stops: StopStrings;
  readonly #minTokens: number;
  readonly #shown: ReadonlySet<number | undefined>;
  /** Scores that wait for their text, and how long the text is when theirs is in it. */
  readonly #held: { score: TokenScore; end: number }[] = [];
  /** What has been made since the last piece was sent. */
  #piece: AnswerPiece;
  #count = 0;
  #made = 0;
  #sent = 0;
  #finished = false;

  constructor(index: number, tokenizer: Tokenizer, options: AnswerTextOptions) {
    const { stops, markers = [], minTokens } = options;
    this.#index = index;
    this.#piece = emptyPiece(index);
    this.#shown = new Set(markers.map((marker) => tokenizer.controlTokens.get(marker)));
    this.#detokenizer = new Detokenizer(tokenizer.decoder, { shown: this.#shown });
    this.#stops = new StopStrings(stops);
    this.#minTokens = minTokens;
  }

  /** Nothing more is to be made of it. */
  get finished(): boolean {
    return this.#finished;
  }

  /** Tokens so far, up to the one that ended it. */
  get count(): number {
    return this.#count;
  }

  /** Undefined while there is nothing to send: half a character, or what may become a stop string. */
  push(events: readonly EngineEvent[]): AnswerPiece | undefined {
    for (const event of events) if (!this.#finished) this.#add(event);
    const piece = this.#piece;
    if (piece.text === "" && piece.scores.length === 0 && !piece.finished) return undefined;
    this.#piece = emptyPiece(this.#index);
    return piece;
  }

  #add({ token, logprob, top, finished }: EngineEvent): void {
    if (token !== undefined) {
      this.#count += 1;
      this.#piece.tokens.push(token);
      // The token that ends an answer is not part of its text, unless that is read for its markers.
      if (finished !== "stop" || this.#shown.has(token)) this.#addText(token, logprob, top);
    }
    if (finished && !this.#finished) this.#addRest(finished === "length" ? "length" : "stop");
  }

  #addText(token: number, logprob: number | undefined, top: readonly TokenLogprob[] = []): void {
    const text = this.#detokenizer.push([token]);
    const begin = this.#made;
    this.#made += text.length;
    if (logprob !== undefined) {
      this.#held.push({ score: { token, logprob, top, begin }, end: this.#made });
    }
    this.#send(text);
  }

  /** It has ended by itself: nothing is held back any more. */
  #addRest(finished: "stop" | "length"): void {
    this.#send(this.#detokenizer.flush());
    if (this.#finished) return;
    this.#piece.text += this.#stops.flush();
    this.#end(finished, Number.POSITIVE_INFINITY);
  }

  #send(text: string): void {
    const watched = this.#count > this.#minTokens;
    const step = watched ? this.#stops.push(text) : { text: this.#stops.flush() + text };
    this.#piece.text += step.text;
    this.#sent += step.text.length;
    if (step.stopped !== undefined) this.#end("stop", this.#sent);
    else this.#release(({ end }) => end <= this.#sent);
  }

  /** Tokens of which no text is left are not told of. */
  #end(finished: "stop" | "length", cut: number): void {
    this.#release(({ score }) => score.begin < cut);
    this.#finished = true;
    this.#piece.finished = finished;
  }

  #release(may: (held: { score: TokenScore; end: number }) => boolean): void {
    const blocked = this.#held.findIndex((held) => !may(held));
    const free = blocked < 0 ? this.#held.length : blocked;
    for (const { score } of this.#held.splice(0, free)) this.#piece.scores.push(score);
  }
}

function emptyPiece(index: number): AnswerPiece {
  return { index, text: "", tokens: [], scores: [], finished: undefined };
}
