// Removes tags around the answer that follows a thought, with adjacent whitespace: <answer>…</answer> of Hunyuan and
// <response>…</response> of Ernie.
import { StringMatcher } from "../../text/string-matcher.ts";
import { isBlank } from "./reading.ts";

const NAMES = ["answer", "response"];

/** Returns the tag that a chat template removes from earlier answers: the model writes this tag. */
export function answerTagOf(template: string): string | undefined {
  if (!template.includes("</think>")) return undefined;
  return NAMES.find((name) => template.includes(`<${name}>`) && template.includes(`</${name}>`));
}

export class AnswerTags {
  readonly #open: string;
  readonly #closer: StringMatcher;
  #place: "before" | "inside" | "other" = "before";
  /** Whether only whitespace has followed the opening tag. */
  #isStart = true;
  #blanks = "";
  /** Text held back because it may be the start of a tag. */
  #pending = "";

  constructor(name: string) {
    this.#open = `<${name}>`;
    this.#closer = new StringMatcher([`</${name}>`]);
  }

  /** Adds text; returns what can be emitted, without the tags. */
  push(text: string): string {
    let free = "";
    for (const char of text) free += this.#take(char);
    return free;
  }

  /** Ends the text; returns the held text, without a possible start of a tag if `isCutOff`. */
  end(isCutOff: boolean): string {
    const rest = this.#blanks + (isCutOff ? "" : this.#pending);
    this.#blanks = this.#pending = "";
    return this.#place === "inside" ? rest.trimEnd() : rest;
  }

  #take(char: string): string {
    if (this.#place === "other") return char;
    if (this.#place === "inside") return this.#takeInside(char);
    if (this.#pending === "" && isBlank(char)) {
      this.#blanks += char;
      return "";
    }
    this.#pending += char;
    if (this.#open.startsWith(this.#pending) && this.#pending !== this.#open) return "";
    this.#place = this.#pending === this.#open ? "inside" : "other";
    const free = this.#place === "other" ? this.#blanks + this.#pending : "";
    this.#blanks = this.#pending = "";
    return free;
  }

  #takeInside(char: string): string {
    this.#pending += char;
    const mark = this.#closer.take(char);
    const kept = mark?.length ?? this.#closer.held;
    const free = this.#pending.slice(0, this.#pending.length - kept);
    this.#pending = this.#pending.slice(free.length);
    const text = this.#withoutBlanks(free);
    if (mark === undefined) return text;
    this.#place = "other";
    this.#blanks = this.#pending = "";
    return text;
  }

  /** Returns the text, but holds back whitespace until other text follows. */
  #withoutBlanks(text: string): string {
    let free = "";
    for (const char of text) {
      if (isBlank(char)) this.#blanks += this.#isStart ? "" : char;
      else {
        free += this.#blanks + char;
        this.#blanks = "";
        this.#isStart = false;
      }
    }
    return free;
  }
}
