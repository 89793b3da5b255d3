// The parser of formats whose calls are written in blocks between other text. It looks for a block's
// opener, reads the block, and returns it as text if it is malformed or names an unknown tool.

import { StringMatcher } from "../../text/string-matcher.ts";
import type { CallDraft, FormatParser, MessagePart, Tool } from "./format.ts";
import { isBlank, Mismatch, type Reading } from "./reading.ts";

export type BlockSyntax = {
  /** What opens a block, wherever it occurs. */
  openers: readonly string[];
  /** What may follow a block and is ignored. */
  closers?: readonly string[];
  /** Reads a block after its opener, and adds the calls in it to `calls` as they appear. */
  read(calls: CallDraft[], opener: string): Reading<void>;
  /** Reads a block that has no opener and starts the message. */
  readFirst?(calls: CallDraft[]): Reading<void>;
  /** Reads another block directly after a call. */
  readNext?(calls: CallDraft[]): Reading<void>;
};

export function blockParser(syntax: BlockSyntax, tools: readonly Tool[]): FormatParser {
  return new BlockParser(syntax, new Set(tools.map(({ name }) => name)));
}

type Block = {
  reading: Reading<void>;
  /** "" if the block has none. */
  opener: string;
  /** All of the block so far, its opener included. */
  text: string;
  calls: CallDraft[];
};

class BlockParser implements FormatParser {
  readonly #syntax: BlockSyntax;
  readonly #names: ReadonlySet<string | undefined>;
  readonly #markers: StringMatcher;
  #parts: MessagePart[] = [];
  #place: "start" | "text" | "after call" = "start";
  /** Whitespace is content only between texts. */
  #blanks = "";
  /** What may still become an opener or a closer. */
  #pending = "";
  /** The block that is being read. */
  #block: Block | undefined;

  constructor(syntax: BlockSyntax, names: ReadonlySet<string>) {
    this.#syntax = syntax;
    this.#names = names;
    this.#markers = new StringMatcher([...syntax.openers, ...(syntax.closers ?? [])]);
  }

  push(text: string): MessagePart[] {
    for (const char of text) this.#take(char);
    return this.#drain();
  }

  end(): MessagePart[] {
    this.#add((this.#block?.text ?? "") + this.#pending);
    this.#block = undefined;
    this.#pending = "";
    if (this.#place !== "after call") this.#addContent(this.#blanks);
    this.#blanks = "";
    return this.#drain();
  }

  cut(): readonly CallDraft[] {
    const { calls } = this.#block ?? { calls: [] };
    if (this.#block) this.#place = "after call";
    this.#block = undefined;
    this.#pending = "";
    return calls;
  }

  #take(char: string): void {
    if (!this.#block && this.#pending === "" && !isBlank(char)) {
      if (this.#place === "start") this.#open("", this.#syntax.readFirst);
      if (this.#place === "after call") this.#open("", this.#syntax.readNext);
    }
    if (this.#block) this.#read(this.#block, char);
    else this.#search(char);
  }

  #open(opener: string, read: BlockSyntax["read"] | undefined): void {
    if (!read) return;
    const calls: CallDraft[] = [];
    const reading = read(calls, opener);
    this.#block = { reading, opener, text: opener, calls };
    reading.next();
  }

  #read(block: Block, char: string): void {
    const { reading, opener, calls } = block;
    const isTool = ({ name }: CallDraft) => this.#names.has(name);
    try {
      const { done } = reading.next(char);
      block.text += char;
      const last = calls.at(-1);
      // Without an opener, a name that is not a tool's is enough to tell that this is other text.
      const isOther = opener === "" && last?.name !== undefined && !isTool(last);
      if (!done && !isOther) return;
      this.#block = undefined;
      if (done && calls.length > 0 && calls.every(isTool)) this.#deliver(calls);
      else this.#add(block.text);
    } catch (error) {
      if (!(error instanceof Mismatch)) throw error;
      this.#block = undefined;
      this.#add(block.text);
      // The character that does not fit may start something else.
      this.#search(char);
    }
  }

  #deliver(calls: readonly CallDraft[]): void {
    this.#place = "after call";
    for (const call of calls) this.#parts.push({ kind: "call", ...call, name: call.name! });
  }

  #search(char: string): void {
    this.#pending += char;
    const mark = this.#markers.take(char);
    const kept = mark === undefined ? this.#markers.held : mark.length;
    const free = this.#pending.length - kept;
    this.#add(this.#pending.slice(0, free));
    this.#pending = this.#pending.slice(free);
    if (mark === undefined) return;
    this.#pending = "";
    if (this.#syntax.openers.includes(mark)) this.#open(mark, this.#syntax.read);
    else if (this.#place !== "after call") this.#add(mark);
  }

  #add(text: string): void {
    for (const char of text) {
      if (isBlank(char)) {
        this.#blanks += char;
        continue;
      }
      this.#addContent(this.#place === "after call" ? char : this.#blanks + char);
      this.#blanks = "";
      this.#place = "text";
    }
  }

  #addContent(text: string): void {
    const last = this.#parts.at(-1);
    if (last?.kind === "content") last.text += text;
    else if (text !== "") this.#parts.push({ kind: "content", text });
  }

  #drain(): MessagePart[] {
    const parts = this.#parts;
    this.#parts = [];
    return parts;
  }
}
