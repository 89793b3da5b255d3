// A tool-call format: parses a model's text into a message, gives the grammar of calls, writes calls and their ids.
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
  /** The JSON text of an object, as the model wrote it if it writes JSON. */
  arguments: string;
  /** The call's id, if the model writes one. */
  id?: string;
};

/** A partially read call. */
export type CallDraft = Omit<Call, "name"> & { name: string | undefined };

export type MessagePart =
  | { kind: "content"; text: string }
  | { kind: "reasoning"; text: string }
  | ({ kind: "call" } & Omit<Call, "arguments">)
  /** Appended to the last call's arguments. */
  | { kind: "arguments"; text: string }
  /** The last call is complete. Absent if its arguments are cut off. */
  | { kind: "call_end" };

/**
 * Splits a message's text into parts as it arrives. An enforced call is returned while it is read; any other
 * is buffered until complete, because a malformed one is content.
 */
export type MessageParser = {
  push(text: string): MessagePart[];
  /**
   * Flushes the buffer. `isCutOff`: the token limit ended the text, not the model. Markup in the buffer is then
   * discarded, and calls in it that name their tools are returned as far as they go.
   */
  end(isCutOff: boolean): MessagePart[];
};

/**
 * Calls that the grammar enforces to their end once begun: those after one of these openers, those with an opener
 * before any text (leading), or all.
 */
export type Enforced = readonly string[] | "leading" | "all";

export type ThoughtMarks = {
  open: string;
  close: string;
  /** Control tokens in some models; the parser and the grammar must see them as text. */
  tokens: readonly string[];
};

/** Marks that are each a single token. */
export function thoughtMarks(open: string, close: string): ThoughtMarks {
  return { open, close, tokens: [open, close] };
}

export type GrammarOptions = {
  /** The answer must be a call, or several if parallel, and nothing else. */
  required: boolean;
  parallel: boolean;
};

export type ToolFormat = {
  name: string;
  /** Control tokens that the parser and the grammar must see as text. */
  markers: readonly string[];
  /** Whether the format includes thoughts: it is then parsed even without tools. */
  thinks?: boolean;
  /** The marks of a thought before the answer, if they are not <think> and </think>. */
  thought?: ThoughtMarks;
  /** `enforced`: none by default. */
  parser(tools: readonly Tool[], enforced?: Enforced): MessageParser;
  /** The grammar of an answer; undefined if text may start like a call, so that calls are only parsed. */
  grammar(tools: readonly Tool[], options: GrammarOptions): StructuralTagFormat | undefined;
  /** The grammar of text, wrapped in the format's markup. */
  wrapText?(text: StructuralTagFormat): StructuralTagFormat;
  /** Writes calls in the model's syntax. */
  write(calls: readonly Call[]): string;
  /** An id for a call to which the model gave none. */
  newCallId(): string;
};

const ALPHANUMERICS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

export function randomAlphanumerics(length: number): string {
  const bytes = crypto.getRandomValues(new Uint8Array(length));
  return Array.from(bytes, (byte) => ALPHANUMERICS[byte % ALPHANUMERICS.length]).join("");
}

export const newCallId = () => `call_${randomAlphanumerics(24)}`;
