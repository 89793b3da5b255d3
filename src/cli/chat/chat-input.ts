// Reads the messages that a user types into a chat. A pasted text of several lines is part of one message, and so is
// text between """ and """.
import { createInterface, type Interface } from "node:readline";
import { Transform } from "node:stream";
import type { ReadStream, WriteStream } from "node:tty";

/** Replaces line breaks in pasted text until the message is sent. */
const LINE_END = "\u2424";
const [PASTE_START, PASTE_END] = ["\x1b[200~", "\x1b[201~"];
/** Prefixes of PASTE_START and PASTE_END, longest first, since a read may end within either. */
const beginnings = [5, 4, 3].flatMap((length) =>
  [PASTE_START, PASTE_END].map((mark) => mark.slice(0, length)),
);
const QUOTES = '"""';

export class ChatInput {
  readonly #input: ReadStream;
  readonly #output: WriteStream;
  readonly #keys: PasteFilter;
  readonly #terminal: Interface;
  readonly #messages: string[] = [];
  #wake = Promise.withResolvers<void>();
  #isClosed = false;
  /** Lines of a block that """ has begun; undefined outside a block. */
  #block: string[] | undefined;
  /** Whether the last input at the prompt was Ctrl-C. */
  #isInterrupted = false;
  /** Called on Ctrl-C while an answer streams. */
  onInterrupt: (() => void) | undefined;

  constructor(input: ReadStream = process.stdin, output: WriteStream = process.stdout) {
    this.#input = input;
    this.#output = output;
    this.#keys = new PasteFilter(input, (text) => this.#terminal.write(text));
    this.#terminal = createInterface({ input: this.#keys, output, terminal: true })
      .on("line", (line) => this.#take(line))
      .on("SIGINT", () => this.#interrupt())
      .on("close", () => this.#end());
    output.write("\x1b[?2004h");
  }

  /** Reads the next message; returns undefined at the end of the input. */
  async next(): Promise<string | undefined> {
    if (this.#messages.length === 0) this.#prompt();
    while (this.#messages.length === 0 && !this.#isClosed) {
      await this.#wake.promise;
      this.#wake = Promise.withResolvers();
    }
    return this.#messages.shift();
  }

  close(): void {
    this.#terminal.close();
  }

  #prompt(): void {
    if (this.#isClosed) return;
    this.#terminal.setPrompt(this.#block ? "... " : "> ");
    this.#terminal.prompt();
  }

  #take(line: string): void {
    this.#isInterrupted = false;
    const message = this.#messageOf(line);
    if (message === undefined) {
      this.#prompt();
      return;
    }
    this.#messages.push(message.replaceAll(LINE_END, "\n"));
    this.#wake.resolve();
  }

  /** Returns the message that a line completes; undefined while a block is open. */
  #messageOf(line: string): string | undefined {
    const begins = !this.#block && line.startsWith(QUOTES);
    if (!this.#block && !begins) return line;
    const text = begins ? line.slice(QUOTES.length) : line;
    const lines = [...(this.#block ?? []), text.replace(/"""$/, "")];
    this.#block = text.endsWith(QUOTES) ? undefined : lines;
    return this.#block ? undefined : lines.join("\n").replace(/^\n|\n$/g, "");
  }

  #interrupt(): void {
    const isEmpty = this.#terminal.line === "" && !this.#block;
    if (this.onInterrupt) this.onInterrupt();
    else if (isEmpty && this.#isInterrupted) this.#terminal.close();
    else this.#clear();
  }

  #clear(): void {
    this.#isInterrupted = true;
    this.#block = undefined;
    this.#output.write("\n");
    for (const name of ["e", "u"]) this.#terminal.write(null as never, { ctrl: true, name });
    this.#prompt();
  }

  #end(): void {
    this.#isClosed = true;
    this.#input.unpipe(this.#keys).pause();
    this.#output.write("\x1b[?2004l\n");
    this.onInterrupt?.();
    this.#wake.resolve();
  }
}

/** Forwards typed text to readline; passes pasted text on as a whole, with LINE_END for line breaks. */
class PasteFilter extends Transform {
  readonly #onPaste: (text: string) => void;
  readonly #decoder = new TextDecoder();
  /** Text of a paste whose end has not been read; undefined otherwise. */
  #pasted: string | undefined;
  /** Text at the end of the last read that may be a prefix of PASTE_START or PASTE_END. */
  #rest = "";
  readonly setRawMode: (isRaw: boolean) => void;

  constructor(input: ReadStream, onPaste: (text: string) => void) {
    super();
    this.#onPaste = onPaste;
    this.setRawMode = (isRaw) => void input.setRawMode(isRaw);
    input.pipe(this);
  }

  override _transform(bytes: Buffer, _: string, done: () => void): void {
    let text = this.#rest + this.#decoder.decode(bytes, { stream: true });
    this.#rest = beginnings.find((beginning) => text.endsWith(beginning)) ?? "";
    text = text.slice(0, text.length - this.#rest.length);
    while (text !== "") text = this.#pasted === undefined ? this.#typed(text) : this.#paste(text);
    done();
  }

  #typed(text: string): string {
    const [before, after] = parted(text, PASTE_START);
    if (before !== "") this.push(before);
    if (after !== undefined) this.#pasted = "";
    return after ?? "";
  }

  #paste(text: string): string {
    const [before, after] = parted(text, PASTE_END);
    this.#pasted += before;
    if (after === undefined) return "";
    const lines = this.#pasted!.replace(/\r\n?|\n/g, LINE_END);
    this.#pasted = undefined;
    // Removes other control characters, which readline would interpret as commands.
    this.#onPaste(lines.replace(/[^\P{Cc}\t]/gu, ""));
    return after;
  }
}

function parted(text: string, mark: string): [before: string, after: string | undefined] {
  const at = text.indexOf(mark);
  return at < 0 ? [text, undefined] : [text.slice(0, at), text.slice(at + mark.length)];
}
