// One answer's tokens as text: whole characters only, up to a stop string, and each token's log-probability
// together with the text that the token is part of.
import type { EngineEvent, TokenLogprob } from "../engine/protocol.ts";
import { StopStrings } from "../text/stop.ts";
import { Detokenizer } from "../text/tokenizer/detokenizer.ts";
import type { Tokenizer } from "../text/tokenizer/tokenizer.ts";

export type TokenScore = {
  token: number;
  logprob: number;
  top: readonly TokenLogprob[];
  /** Where its text begins in the answer's. */
  begin: number;
};

/** A part of an answer that can be sent. */
export type AnswerPiece = {
  index: number;
  text: string;
  tokens: number[];
  /** Of the tokens whose text is sent; empty unless logprobs were requested. */
  scores: TokenScore[];
  finished: "stop" | "length" | undefined;
  /** The stop string that ended it. */
  stop?: string;
};

export type AnswerTextOptions = {
  stops: readonly string[];
  /** Control tokens that are part of the text. */
  markers?: readonly string[];
  /** Stop strings are ignored before this many tokens. */
  minTokens: number;
};

export class AnswerText {
  readonly #index: number;
  readonly #detokenizer: Detokenizer;
  readonly #stops: StopStrings;
  readonly #minTokens: number;
  readonly #shown: ReadonlySet<number | undefined>;
  /** Scores whose text is not sent yet, and the length of the text that includes theirs. */
  readonly #pending: { score: TokenScore; end: number }[] = [];
  /** What is new since the last piece. */
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

  /** Whether the text is complete. */
  get finished(): boolean {
    return this.#finished;
  }

  /** The number of tokens, up to the one that ended the answer. */
  get count(): number {
    return this.#count;
  }

  /** Undefined while there is nothing to send: half a character, or a possible beginning of a stop string. */
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
      // The token that ends an answer is part of its text only where it is a marker.
      if (finished !== "stop" || this.#shown.has(token)) this.#addText(token, logprob, top);
    }
    if (finished && !this.#finished) this.#addRest(finished === "length" ? "length" : "stop");
  }

  #addText(token: number, logprob: number | undefined, top: readonly TokenLogprob[] = []): void {
    const text = this.#detokenizer.push([token]);
    const begin = this.#made;
    this.#made += text.length;
    if (logprob !== undefined) {
      this.#pending.push({ score: { token, logprob, top, begin }, end: this.#made });
    }
    this.#send(text);
  }

  /** The model ended it: all text that is pending is sent. */
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
    if (step.stopped === undefined) this.#release(({ end }) => end <= this.#sent);
    else {
      this.#end("stop", this.#sent);
      this.#piece.stop = step.stopped;
    }
  }

  /** Scores of tokens whose whole text was cut off are dropped. */
  #end(finished: "stop" | "length", cut: number): void {
    this.#release(({ score }) => score.begin < cut);
    this.#finished = true;
    this.#piece.finished = finished;
  }

  #release(isReady: (pending: { score: TokenScore; end: number }) => boolean): void {
    const blocked = this.#pending.findIndex((pending) => !isReady(pending));
    const free = blocked < 0 ? this.#pending.length : blocked;
    for (const { score } of this.#pending.splice(0, free)) this.#piece.scores.push(score);
  }
}

function emptyPiece(index: number): AnswerPiece {
  return { index, text: "", tokens: [], scores: [], finished: undefined };
}
