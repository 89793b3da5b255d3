// A tool-call format: how a model's text is parsed into a message, the grammar of its calls, how calls are
// written, and the ids of calls.
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

/** A call as far as it has been read. */
export type CallDraft = Omit<Call, "name"> & { name: string | undefined };

export type MessagePart =
  | { kind: "content"; text: string }
  | { kind: "reasoning"; text: string }
  | ({ kind: "call" } & Call);

/**
 * Splits a message's text into parts as it arrives. A call is buffered until it is complete; text that
 * turns out not to be a call is content.
 */
export type FormatParser = {
  push(text: string): MessagePart[];
  /** Flushes what is buffered. */
  end(): MessagePart[];
  /** Discards buffered markup, and returns the calls in it as far as they go. */
  cut(): readonly CallDraft[];
};

/** What stands around a thought. */
export type ThoughtMarks = {
  open: string;
  close: string;
  /** Control tokens in some models; the parser and the grammar must see them as text. */
  tokens: readonly string[];
};

/** Marks that are each a token of their own. */
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
  parser(tools: readonly Tool[]): FormatParser;
  /** The grammar of an answer; undefined if text may start like a call, so that calls are only parsed. */
  grammar(tools: readonly Tool[], options: GrammarOptions): StructuralTagFormat | undefined;
  /** The grammar of text, wrapped in the format's markup. */
  wrapText?(text: StructuralTagFormat): StructuralTagFormat;
  /** Calls in the model's syntax. */
  write(calls: readonly Call[]): string;
  /** The id that a tool's result refers to, for a call to which the model gave none. */
  newCallId(): string;
};

const ALPHANUMERICS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

export function randomAlphanumerics(length: number): string {
  const bytes = crypto.getRandomValues(new Uint8Array(length));
  return Array.from(bytes, (byte) => ALPHANUMERICS[byte % ALPHANUMERICS.length]).join("");
}

export const newCallId = () => `call_${randomAlphanumerics(24)}`;
