// Parses formats whose calls are blocks between other text. If the grammar enforces a block, its calls are returned
// while they are read, otherwise once the block is complete. A malformed block or one with an unknown tool is
// returned as text.

import { StringMatcher } from "../../text/string-matcher.ts";
import type {
  Call,
  CallDraft,
  Enforced,
  MessageParser,
  MessagePart,
  Tool,
  ToolFormat,
} from "./format.ts";
import { isBlank, Mismatch, type Reading } from "./reading.ts";

export type BlockSyntax = {
  /** Texts that open a block anywhere in the message. */
  openers: readonly string[];
  /** Texts that are ignored after a block. */
  closers?: readonly string[];
  /** Reads a block after its opener, and adds the calls in it to `calls` as they appear. */
  read(calls: CallDraft[], opener: string, tools: readonly Tool[]): Reading<void>;
  /** Reads a block that starts the message without an opener. */
  readFirst?(calls: CallDraft[]): Reading<void>;
  /** Reads another block directly after a call. */
  readNext?(calls: CallDraft[]): Reading<void>;
};

export function blockParser(syntax: BlockSyntax): ToolFormat["parser"] {
  return (tools, enforced = []) => new BlockParser(syntax, tools, enforced);
}

type Block = {
  reading: Reading<void>;
  /** Opener of the block; "" if it has none. */
  opener: string;
  /** Text of the block so far, including the opener; unused once a call is returned. */
  text: string;
  calls: CallDraft[];
  isEnforced: boolean;
  /** Number of calls returned with all their arguments. */
  returned: number;
  /** Last call that has been returned at least in part. */
  begun?: CallDraft;
};

class BlockParser implements MessageParser {
  readonly #syntax: BlockSyntax;
  readonly #tools: readonly Tool[];
  readonly #names: ReadonlySet<string | undefined>;
  readonly #enforced: Enforced;
  readonly #markers: StringMatcher;
  #parts: MessagePart[] = [];
  #place: "start" | "text" | "after call" = "start";
  /** Whitespace held back until text follows, because it is content only between texts. */
  #blanks = "";
  /** Text held back because it may be the start of an opener or closer. */
  #pending = "";
  #block: Block | undefined;

  constructor(syntax: BlockSyntax, tools: readonly Tool[], enforced: Enforced) {
    this.#syntax = syntax;
    this.#tools = tools;
    this.#names = new Set(tools.map(({ name }) => name));
    this.#enforced = enforced;
    this.#markers = new StringMatcher([...syntax.openers, ...(syntax.closers ?? [])]);
  }

  push(text: string): MessagePart[] {
    for (const char of text) this.#take(char);
    if (this.#block?.isEnforced) this.#addCalls(this.#block);
    return this.#drain();
  }

  end(isCutOff: boolean): MessagePart[] {
    if (this.#block) this.#giveUp(this.#block, isCutOff || this.#block.isEnforced);
    if (!isCutOff) this.#add(this.#pending);
    this.#pending = "";
    if (this.#place !== "after call") this.#addContent(this.#blanks);
    this.#blanks = "";
    return this.#drain();
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
    const reading = read(calls, opener, this.#tools);
    const isEnforced = this.#isEnforced(opener);
    this.#block = { reading, opener, text: opener, calls, isEnforced, returned: 0 };
    reading.next();
  }

  #isEnforced(opener: string): boolean {
    if (this.#enforced === "all") return true;
    if (this.#enforced === "leading") return opener !== "" && this.#place !== "text";
    return this.#enforced.includes(opener);
  }

  #read(block: Block, char: string): void {
    const { reading, opener, calls } = block;
    try {
      const { done } = reading.next(char);
      if (!block.begun) block.text += char;
      const last = calls.at(-1);
      // A block without an opener is text as soon as it names an unknown tool.
      const isOther = opener === "" && last?.name !== undefined && !this.#isTool(last);
      if (!done && !isOther) return;
      if (!done || calls.length === 0 || !calls.every(this.#isTool)) this.#giveUp(block, false);
      else {
        this.#addCalls(block);
        this.#parts.push({ kind: "call_end" });
        this.#block = undefined;
      }
    } catch (error) {
      if (!(error instanceof Mismatch)) throw error;
      this.#giveUp(block, false);
      // The character that does not fit the block may start something else.
      this.#search(char);
    }
  }

  readonly #isTool = (call: CallDraft): call is Call => this.#names.has(call.name);

  /** Abandons a block: adds its calls if it is dropped or enforced. A kept block that returned no call is text. */
  #giveUp(block: Block, isDropped: boolean): void {
    this.#block = undefined;
    if (isDropped || block.isEnforced) this.#addCalls(block);
    if (isDropped) this.#place = "after call";
    else if (!block.begun) this.#add(block.text);
  }

  /** Adds the block's newly read calls and arguments to the message's parts. */
  #addCalls(block: Block): void {
    const { calls } = block;
    for (const call of calls.slice(block.returned)) {
      if (this.#isTool(call)) this.#addCall(call, block);
    }
    block.returned = Math.max(0, calls.length - 1);
  }

  #addCall(call: Call, block: Block): void {
    const { arguments: text, ...begin } = call;
    if (call !== block.begun) {
      if (block.begun) this.#parts.push({ kind: "call_end" });
      this.#parts.push({ kind: "call", ...begin });
      block.begun = call;
      this.#place = "after call";
    }
    if (text !== "") this.#parts.push({ kind: "arguments", text });
    call.arguments = "";
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
