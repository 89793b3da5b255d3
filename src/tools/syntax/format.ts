// A tool-call format: parses a model's text into the parts of a message, constrains calls with a grammar, and writes
// calls and their ids.
import type { StructuralTagFormat } from "@mlc-ai/web-xgrammar";

/** A function that the model may call. */
export type Tool = {
  name: string;
  description?: string | undefined;
  /** JSON schema of an object. */
  parameters: Record<string, unknown>;
};

export type Call = {
  name: string;
  /** JSON text of an object; the model's own text if the model writes JSON. */
  arguments: string;
  /** Id of the call, if the model writes one. */
  id?: string;
};

/** A partially read call. */
export type CallDraft = Omit<Call, "name"> & { name: string | undefined };

export type MessagePart =
  | { kind: "content"; text: string }
  | { kind: "reasoning"; text: string }
  | ({ kind: "call" } & Omit<Call, "arguments">)
  /** JSON text to append to the last call's arguments. */
  | { kind: "arguments"; text: string }
  /** The last call is complete. This part is absent if the call's arguments are cut off. */
  | { kind: "call_end" };

/**
 * Splits a message's text into parts as it arrives. An enforced call is returned while it is read.
 * Any other call is buffered until complete, because a malformed one is content.
 */
export type MessageParser = {
  push(text: string): MessagePart[];
  /**
   * Flushes the buffer. `isCutOff`: the token limit ended the text, not the model. Incomplete markup is then
   * discarded, and an incomplete call is returned if it already names its tool.
   */
  end(isCutOff: boolean): MessagePart[];
};

/**
 * Calls that the grammar enforces to their end once begun: calls after one of these openers, calls with an opener
 * before any text ("leading"), or all calls.
 */
export type Enforced = readonly string[] | "leading" | "all";

export type ThoughtMarks = {
  open: string;
  close: string;
  /** Marks that are control tokens in some models; the parser and the grammar must see them as text. */
  tokens: readonly string[];
};

/** Returns the marks of a thought whose opening and closing marks are single tokens. */
export function thoughtMarks(open: string, close: string): ThoughtMarks {
  return { open, close, tokens: [open, close] };
}

export type GrammarOptions = {
  /** Whether the answer must be a call, or several if `parallel`, and nothing else. */
  required: boolean;
  parallel: boolean;
};

export type ToolFormat = {
  name: string;
  /** Control tokens that the parser and the grammar must see as text. */
  markers: readonly string[];
  /** Whether the format includes thoughts: it is then parsed even without tools. */
  thinks?: boolean;
  /** Marks of a thought before the answer, unless they are <think> and </think>. */
  thought?: ThoughtMarks;
  /** Creates a parser for one message. By default no calls are enforced. */
  parser(tools: readonly Tool[], enforced?: Enforced): MessageParser;
  /** Returns the grammar of an answer. Undefined if plain text may begin like a call; no call is then enforced. */
  grammar(tools: readonly Tool[], options: GrammarOptions): StructuralTagFormat | undefined;
  /** Wraps the grammar of a text in the format's markup. */
  wrapText?(text: StructuralTagFormat): StructuralTagFormat;
  /** Writes calls in the model's syntax. */
  write(calls: readonly Call[]): string;
  /** Makes an id for a call to which the model gave none. */
  newCallId(): string;
};

const ALPHANUMERICS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

export function randomAlphanumerics(length: number): string {
  const bytes = crypto.getRandomValues(new Uint8Array(length));
  return Array.from(bytes, (byte) => ALPHANUMERICS[byte % ALPHANUMERICS.length]).join("");
}

export const newCallId = () => `call_${randomAlphanumerics(24)}`;
