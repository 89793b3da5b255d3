// The parser of formats whose calls stand in blocks between other text. It watches for what opens a block,
// reads the block, and gives it back as text if it is none or names a tool that is not there.
import type { Call, MessageParser, MessagePart, Tool } from "./format.ts";
import { Markers } from "./markers.ts";
import { isBlank, Mismatch, type Reading } from "./reading.ts";

export type BlockSyntax = {
  /** What opens a block, wherever it stands. */
  openers: readonly string[];
  /** What may follow a block and means nothing. */
  closers?: readonly string[];
  /** Reads a block behind its opener. */
  read(opener: string): Reading<readonly Call[]>;
  /** Reads a block without an opener, which stands first in the message. */
  readFirst?(): Reading<readonly Call[]>;
  /** Reads what begins right behind a call and is another. */
  readNext?(): Reading<readonly Call[]>;
};

export function blockParser(syntax: BlockSyntax, tools: readonly Tool[]): MessageParser {
  return new BlockParser(syntax, new Set(tools.map(({ name }) => name)));
}

class BlockParser implements MessageParser {
  readonly #syntax: BlockSyntax;
  readonly #names: ReadonlySet<string>;
  readonly #markers: Markers;
  #parts: MessagePart[] = [];
  #place: "start" | "text" | "after call" = "start";
  /** Blanks are content only between texts. */
  #blanks = "";
  /** What may yet become an opener or a closer. */
  #pending = "";
  #reading: Reading<readonly Call[]> | undefined;
  /** The text of the block that is being read. */
  #block = "";

  constructor(syntax: BlockSyntax, names: ReadonlySet<string>) {
    this.#syntax = syntax;
    this.#names = names;
    this.#markers = new Markers([...syntax.openers, ...(syntax.closers ?? [])]);
  }

  push(text: string): MessagePart[] {
    for (const char of text) this.#take(char);
    return this.#drain();
  }

  end(): MessagePart[] {
    this.#reading = undefined;
    this.#add(this.#block + this.#pending);
    this.#block = this.#pending = "";
    if (this.#place !== "after call") this.#addContent(this.#blanks);
    this.#blanks = "";
    return this.#drain();
  }

  #take(char: string): void {
    const isInside = this.#reading !== undefined || this.#pending !== "" || isBlank(char);
    if (!isInside && this.#place === "start") this.#open("", this.#syntax.readFirst?.());
    if (!isInside && this.#place === "after call") this.#open("", this.#syntax.readNext?.());
    if (this.#reading) this.#read(this.#reading, char);
    else this.#search(char);
  }

  #open(opener: string, reading: Reading<readonly Call[]> | undefined): void {
    this.#block = opener;
    this.#reading = reading;
    reading?.next();
  }

  #read(reading: Reading<readonly Call[]>, char: string): void {
    try {
      const { done, value: calls } = reading.next(char);
      this.#block += char;
      if (!done) return;
      this.#reading = undefined;
      if (calls.length > 0 && calls.every(({ name }) => this.#names.has(name)))
        this.#deliver(calls);
      else this.#add(this.#block);
      this.#block = "";
    } catch (error) {
      if (!(error instanceof Mismatch)) throw error;
      this.#reading = undefined;
      this.#add(this.#block);
      this.#block = "";
      // The character that does not fit may begin something else.
      this.#search(char);
    }
  }

  #deliver(calls: readonly Call[]): void {
    this.#place = "after call";
    for (const call of calls) this.#parts.push({ kind: "call", ...call });
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
    if (this.#syntax.openers.includes(mark)) this.#open(mark, this.#syntax.read(mark));
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
