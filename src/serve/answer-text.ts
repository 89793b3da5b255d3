// Turns one answer's tokens into text: only complete characters, up to a stop string, and each token's log-probability
// together with its text.
import type { EngineEvent, TokenLogprob } from "../engine/protocol.ts";
import { StopStrings } from "../text/stop.ts";
import { Detokenizer } from "../text/tokenizer/detokenizer.ts";
import type { Tokenizer } from "../text/tokenizer/tokenizer.ts";

export type TokenScore = {
  token: number;
  logprob: number;
  top: readonly TokenLogprob[];
  /** Offset of the token's text in the answer's text. */
  begin: number;
};

/** The next part of an answer to be sent. */
export type AnswerPiece = {
  index: number;
  text: string;
  tokens: number[];
  /** Log-probabilities of the tokens whose text is in this piece; empty unless they were requested. */
  scores: TokenScore[];
  finished: "stop" | "length" | undefined;
  /** The stop string that ended the answer. */
  stop?: string;
};

export type AnswerTextOptions = {
  stops: readonly string[];
  /** Control tokens that are shown as part of the text. */
  markers?: readonly string[];
  /** Minimum tokens before a stop string can end the answer. */
  minTokens: number;
};

export class AnswerText {
  readonly #index: number;
  readonly #detokenizer: Detokenizer;
  readonly #stops: StopStrings;
  readonly #minTokens: number;
  readonly #shown: ReadonlySet<number | undefined>;
  /** Log-probabilities of tokens whose text is not sent yet; `end`: offset in the answer at which that text ends. */
  readonly #pending: { score: TokenScore; end: number }[] = [];
  /** The piece that the next call of `push` returns. */
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

  get finished(): boolean {
    return this.#finished;
  }

  /** Number of the answer's tokens, including the one that ended it. */
  get count(): number {
    return this.#count;
  }

  /** Adds tokens and returns the text to send; undefined while it may be part of a character or a stop string. */
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
      // A stop token is part of the text only if it is a control token that is shown.
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

  /** Sends all pending text after the last token. */
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

  /** Ends the text at offset `cut`; drops the log-probabilities of tokens whose text is entirely beyond it. */
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
