// What a tool-call format is: how a model's text becomes a message, what its calls are held to, and what
// the results of calls refer to.
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
  /** JSON text of an object: as the model wrote it, where it writes JSON. */
  arguments: string;
};

/** A call as far as it has been read. */
export type CallDraft = { name: string | undefined; arguments: string };

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
  /** Discards buffered markup, finished or not, and returns the calls in it as far as they go. */
  cut(): readonly CallDraft[];
};

export type GrammarOptions = {
  /** The answer is a call, or several if parallel, and nothing else. */
  required: boolean;
  parallel: boolean;
};

export type ToolFormat = {
  name: string;
  /** Control tokens that the parser and the grammar must see as text. */
  markers: readonly string[];
  /** Whether thoughts are part of the format: then it is parsed with and without tools. */
  thinks?: boolean;
  parser(tools: readonly Tool[]): FormatParser;
  /** What a model is held to; undefined where text could begin as calls do: then they are only parsed. */
  grammar(tools: readonly Tool[], options: GrammarOptions): StructuralTagFormat | undefined;
  /** What an answer's text is held to, with what stands around it in the format. */
  aroundText?(text: StructuralTagFormat): StructuralTagFormat;
  /** Calls as the model writes them. */
  write(calls: readonly Call[]): string;
  /** What a tool message's answer refers to. */
  newCallId(): string;
};

const ALPHANUMERICS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

export function randomAlphanumerics(length: number): string {
  const bytes = crypto.getRandomValues(new Uint8Array(length));
  return Array.from(bytes, (byte) => ALPHANUMERICS[byte % ALPHANUMERICS.length]).join("");
}

export const newCallId = () => `call_${randomAlphanumerics(24)}`;
