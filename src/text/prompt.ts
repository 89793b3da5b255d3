// Renders a chat into token ids. Control tokens that the template writes become tokens; the same characters in user
// input stay text. To tell them apart after rendering, noncharacters mark each offset in the user's strings where a
// control token could start; the marks are removed before encoding.
import { headsOf } from "./template/heads.ts";
import type { ChatInput, ChatTemplate } from "./template/template.ts";
import { matcher } from "./tokenizer/added-tokens.ts";
import { finish, type TokenIds } from "./tokenizer/token-ids.ts";
import { type Tokenizer, TooLongError } from "./tokenizer/tokenizer.ts";

export interface Prompt {
  text: string;
  ids: number[];
}

// A mark is U+FDD0 and a second noncharacter: U+FDD1 for a U+FDD0 in user input, U+FDD2 where no token may start.
const MARK = "\uFDD0";
const WRITTEN_MARK = "\uFDD0\uFDD1";
const NO_TOKEN_HERE = "\uFDD0\uFDD2";

export type ChatWork = {
  input: ChatInput;
  maxTokens: number;
  /** Whether to find the prefixes that other chats may share. */
  wantsHeads?: boolean;
};

/** Builds prompts for one model. Throws TooLongError for a prompt above `maxTokens`. */
export interface PromptBuilder {
  (input: ChatInput, maxTokens?: number): Prompt;
  /** Builds in steps: appends the ids; returns the text and the lengths in tokens of shareable prefixes. */
  steps(work: ChatWork, ids: TokenIds): Generator<void, { text: string; heads: number[] }>;
}

export function promptBuilder(template: ChatTemplate, tokenizer: Tokenizer): PromptBuilder {
  const guard = userTextGuard([...tokenizer.controlTokens.keys()]);
  function* steps(
    { input: { messages, tools, kwargs, ...flags }, maxTokens, wantsHeads = false }: ChatWork,
    ids: TokenIds,
  ): Generator<void, { text: string; heads: number[] }> {
    // Checked before guarding and rendering, which take long: every message is assumed to take at least one token.
    if (messages.length > maxTokens) throw new TooLongError(maxTokens);
    let room = maxTokens * tokenizer.longestToken;
    const guarded = (text: string) => {
      room -= text.length;
      if (room < 0) throw new TooLongError(maxTokens);
      return guard(text);
    };
    const input = {
      ...flags,
      messages: guardAll(messages, guarded),
      ...(tools && { tools: guardAll(tools, guarded) }),
      ...(kwargs && { kwargs: guardAll(kwargs, guarded) }),
    };
    const { text, plainAt } = unguard(template.render(input));
    const render = (other: ChatInput) => unguard(template.render(other)).text;
    const offsets = wantsHeads ? yield* headsOf(input, text, render) : [];
    // No special tokens are added: the template writes BOS itself.
    const controlTokens = { parseExceptAt: plainAt };
    const heads = yield* tokenizer.encodeSteps(text, { controlTokens, maxTokens, offsets }, ids);
    return { text, heads };
  }
  const build = (input: ChatInput, maxTokens = Infinity): Prompt => {
    const ids: number[] = [];
    const { text } = finish(steps({ input, maxTokens }, ids));
    return { text, ids };
  };
  return Object.assign(build, { steps });
}

type Guard = (text: string) => string;

/**
 * Returns a function that marks each offset in a user's string where a control token starts. A prefix of a control
 * token at the string's end is marked too, because the next user string may complete the token.
 */
function userTextGuard(tokens: readonly string[]): Guard {
  const anywhere = matcher(tokens, "g");
  const beginnings = new Set(tokens.flatMap(properPrefixes));
  const longest = tokens.reduce((length, token) => Math.max(length, token.length), 0);

  return (text) => {
    const escaped = text.toWellFormed().replaceAll(MARK, WRITTEN_MARK);
    if (!anywhere) return escaped;
    const begins: number[] = [];
    anywhere.lastIndex = 0;
    for (let match = anywhere.exec(escaped); match; match = anywhere.exec(escaped)) {
      begins.push(match.index);
      anywhere.lastIndex = match.index + 1;
    }
    for (let at = Math.max(0, escaped.length - longest + 1); at < escaped.length; at++) {
      if (beginnings.has(escaped.slice(at))) begins.push(at);
    }
    if (begins.length === 0) return escaped;
    let marked = "";
    let done = 0;
    for (const begin of begins.sort((a, b) => a - b)) {
      const end = begin + characterAt(escaped, begin).length;
      marked += escaped.slice(done, end) + NO_TOKEN_HERE;
      done = end;
    }
    return marked + escaped.slice(done);
  };
}

/** Removes the marks that guard user text; returns the offsets at which control tokens stay text. */
function unguard(rendered: string): { text: string; plainAt: Set<number> } {
  const plainAt = new Set<number>();
  let text = "";
  let done = 0;
  for (const { 0: mark, index } of rendered.matchAll(/\uFDD0[\uFDD1\uFDD2]/g)) {
    text += rendered.slice(done, index);
    done = index + mark.length;
    if (mark === WRITTEN_MARK) text += MARK;
    else plainAt.add(text.length - lengthBefore(rendered, index));
  }
  return { text: text + rendered.slice(done), plainAt };
}

/** Copies a value with every string guarded, including field names: a tool's parameters are user input. */
function guardAll<T>(value: T, guard: Guard): T;
function guardAll(value: unknown, guard: Guard): unknown {
  if (typeof value === "string") return guard(value);
  if (typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map((item) => guardAll(item, guard));
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) => [guard(key), guardAll(item, guard)]),
  );
}

function properPrefixes(text: string): string[] {
  return Array.from({ length: text.length - 1 }, (_, i) => text.slice(0, i + 1));
}

function characterAt(text: string, at: number): string {
  return String.fromCodePoint(text.codePointAt(at)!);
}

/** Length in UTF-16 units of the character that ends at `end`. */
function lengthBefore(text: string, end: number): number {
  const last = text.charCodeAt(end - 1);
  return last >= 0xdc00 && last <= 0xdfff ? 2 : 1;
}
