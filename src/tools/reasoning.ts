// Splits off the thought before an answer: <think>…</think> at the start of the message, or other marks of the format.
// Surrounding whitespace belongs neither to the thought nor to the answer.
import type { StructuralTagFormat } from "@mlc-ai/web-xgrammar";
import { StringMatcher } from "../text/string-matcher.ts";
import { type ThoughtMarks, thoughtMarks } from "./syntax/format.ts";
import { optional } from "./syntax/grammar.ts";
import { isBlank } from "./syntax/reading.ts";

export const thinkTags = thoughtMarks("<think>", "</think>");

export type Thinking =
  /** The model does not think before it answers. */
  | "none"
  | "possible"
  /** The prompt ends inside the thought. */
  | "begun";

export function thinkingOf(
  template: string,
  prompt: string,
  { open, close }: ThoughtMarks = thinkTags,
): Thinking {
  if (prompt.trimEnd().endsWith(open)) return "begun";
  return template.includes(close) ? "possible" : "none";
}

export type Split = { reasoning: string; text: string };

export class Reasoning {
  readonly #open: string;
  readonly #closer: StringMatcher;
  #place: "before" | "inside" | "behind" | "text";
  /** Whether the thought has any non-blank character so far. */
  #begun = false;
  #blanks = "";
  /** Text held back because it may be the start of a marker. */
  #pending = "";

  /** `inside`: whether the prompt ends inside the thought. */
  constructor(inside: boolean, { open, close }: ThoughtMarks = thinkTags) {
    this.#open = open;
    this.#closer = new StringMatcher([close]);
    this.#place = inside ? "inside" : "before";
  }

  push(text: string): Split {
    const split = { reasoning: "", text: "" };
    let taken = 0;
    for (const char of text) {
      if (this.#place === "text") break;
      taken += char.length;
      this.#take(char, split);
    }
    split.text += text.slice(taken);
    return split;
  }

  end(): Split {
    const split = { reasoning: "", text: "" };
    if (this.#place === "before") split.text = this.#blanks + this.#pending;
    if (this.#place === "inside") this.#addThought(this.#pending, split);
    this.#blanks = this.#pending = "";
    return split;
  }

  /** Discards text that may have been the start of a marker. */
  cut(): void {
    this.#pending = "";
  }

  #take(char: string, split: Split): void {
    if (this.#place === "before") this.#takeBefore(char, split);
    else if (this.#place === "inside") this.#takeInside(char, split);
    else if (!isBlank(char)) {
      this.#place = "text";
      split.text += char;
    }
  }

  #takeBefore(char: string, split: Split): void {
    if (this.#pending === "" && isBlank(char)) {
      this.#blanks += char;
      return;
    }
    this.#pending += char;
    if (this.#open.startsWith(this.#pending) && this.#pending !== this.#open) return;
    this.#place = this.#pending === this.#open ? "inside" : "text";
    if (this.#place === "text") split.text += this.#blanks + this.#pending;
    this.#blanks = this.#pending = "";
  }

  #takeInside(char: string, split: Split): void {
    this.#pending += char;
    const mark = this.#closer.take(char);
    const free = this.#pending.length - (mark?.length ?? this.#closer.held);
    this.#addThought(this.#pending.slice(0, free), split);
    this.#pending = this.#pending.slice(free);
    if (mark === undefined) return;
    this.#place = "behind";
    this.#blanks = this.#pending = "";
  }

  #addThought(text: string, split: Split): void {
    for (const char of text) {
      this.#blanks += char;
      if (isBlank(char)) continue;
      split.reasoning += this.#begun ? this.#blanks : char;
      this.#begun = true;
      this.#blanks = "";
    }
  }
}

/** Returns an answer's grammar that allows a thought before the answer, if the model thinks. */
export function withThought(
  answer: StructuralTagFormat,
  thinking: Thinking,
  { open, close }: ThoughtMarks = thinkTags,
): StructuralTagFormat {
  if (thinking === "none") return answer;
  const begun = thinking === "begun";
  const thought: StructuralTagFormat = {
    type: "tag",
    begin: begun ? "" : open,
    content: { type: "any_text" },
    end: close,
  };
  const blanks: StructuralTagFormat = { type: "regex", pattern: "[ \\n]{0,3}" };
  return { type: "sequence", elements: [begun ? thought : optional(thought), blanks, answer] };
}
