// gpt-oss (harmony): an answer is several messages, each with a channel. It starts after <|start|>assistant:
// <|channel|>analysis<|message|>A thought.<|end|>
// <|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{…}<|call|>
// <|start|>assistant<|channel|>final<|message|>An answer.<|return|>
// <|call|> and <|return|> are stop tokens, so the parser rarely sees them.
import type { StructuralTagFormat, TagFormat } from "@mlc-ai/web-xgrammar";
import { StringMatcher } from "../../text/string-matcher.ts";
import {
  type Call,
  type CallDraft,
  type Enforced,
  type GrammarOptions,
  type MessageParser,
  type MessagePart,
  newCallId,
  type Tool,
  type ToolFormat,
} from "../syntax/format.ts";
import { jsonArguments, optional } from "../syntax/grammar.ts";
import { isJsonObject, jsonArguments as readArguments } from "../syntax/json-call.ts";
import { type At, advance, word } from "../syntax/literal-value.ts";
import { literal, Mismatch, need, pastBlanks, type Reading } from "../syntax/reading.ts";

const START = "<|start|>";
const ENDS = ["<|end|>", "<|call|>", "<|return|>"];
const CHANNEL = "<|channel|>";
const NAMESPACE = "functions.";

export const harmony: ToolFormat = {
  name: "harmony",
  markers: [START, CHANNEL, "<|constrain|>", "<|message|>", ...ENDS],
  thinks: true,
  parser: (tools, enforced = []) =>
    new HarmonyParser(new Set(tools.map(({ name }) => name)), enforced),
  grammar,
  wrapText: (text) => ({
    type: "sequence",
    elements: [
      optional(thought),
      { type: "const_string", value: `${CHANNEL}final<|message|>` },
      text,
    ],
  }),
  write: (calls) => calls.map(write).join(`${ENDS[1]}${START}assistant`),
  newCallId,
};

type Head = { channel: string; recipient: string | undefined };

class HarmonyParser implements MessageParser {
  readonly #names: ReadonlySet<string>;
  readonly #enforced: Enforced;
  readonly #markers = new StringMatcher([START, ...ENDS]);
  #parts: MessagePart[] = [];
  #reading: Reading<Head> | undefined;
  /** Text of the message's header, kept while a call may still turn out to be plain text. */
  #head = "";
  #kind: "content" | "reasoning" | "call" | "complete call" = "content";
  #name = "";
  /** Text of a call that the grammar does not enforce, or a possible prefix of a marker. */
  #body = "";
  /** The grammar-enforced call that is being read. */
  #call: { draft: CallDraft; reading: Reading<void> } | undefined;
  #hasText = false;

  constructor(names: ReadonlySet<string>, enforced: Enforced) {
    this.#names = names;
    this.#enforced = enforced;
    this.#openHead();
  }

  push(text: string): MessagePart[] {
    for (const char of text) this.#take(char);
    this.#addArguments();
    return this.#drain();
  }

  end(isCutOff: boolean): MessagePart[] {
    if (this.#call) return [];
    if (isCutOff) this.#cut();
    // Drops an incomplete header, unless it may belong to a call that the grammar does not enforce.
    else if (!this.#reading) this.#close("");
    else if (this.#head.includes("to=") && !this.#isEnforced()) this.#add("content", this.#head);
    return this.#drain();
  }

  #cut(): void {
    const isCall = !this.#reading && this.#kind === "call" && this.#names.has(this.#name);
    if (!isCall) return;
    const body = this.#body.slice(0, this.#body.length - this.#markers.held).trimStart();
    this.#parts.push({ kind: "call", name: this.#name });
    if (body !== "") this.#parts.push({ kind: "arguments", text: body });
  }

  #openHead(): void {
    this.#head = "";
    this.#reading = readHead();
    this.#reading.next();
  }

  #take(char: string): void {
    if (this.#reading) this.#takeHead(this.#reading, char);
    else if (this.#call) this.#takeCall(this.#call.reading, char);
    else this.#takeBody(char);
  }

  #takeHead(reading: Reading<Head>, char: string): void {
    try {
      const { done, value: head } = reading.next(char);
      this.#head += char;
      if (done) this.#openBody(head);
    } catch (error) {
      if (!(error instanceof Mismatch)) throw error;
      this.#add("content", this.#head);
      this.#openBody({ channel: "final", recipient: undefined });
      this.#takeBody(char);
    }
  }

  #openBody({ channel, recipient }: Head): void {
    this.#reading = undefined;
    if (recipient === undefined) this.#kind = channel === "analysis" ? "reasoning" : "content";
    else {
      this.#kind = "call";
      this.#name = recipient.startsWith(NAMESPACE) ? recipient.slice(NAMESPACE.length) : "";
      if (this.#isEnforced() && this.#names.has(this.#name)) this.#openCall();
    }
  }

  #isEnforced(): boolean {
    if (this.#enforced === "all") return true;
    if (this.#enforced === "leading") return !this.#hasText;
    return this.#enforced.some((trigger) => this.#head.includes(trigger));
  }

  #openCall(): void {
    const draft: CallDraft = { name: this.#name, arguments: "" };
    const reading = readArgumentsOf(draft);
    reading.next();
    this.#call = { draft, reading };
    this.#parts.push({ kind: "call", name: this.#name });
  }

  /** Reads an enforced call. The grammar decides where the call ends, so markers in its strings are text. */
  #takeCall(reading: Reading<void>, char: string): void {
    try {
      if (!reading.next(char).done) return;
      this.#kind = "complete call";
    } catch (error) {
      if (!(error instanceof Mismatch)) throw error;
      this.#kind = "content";
    }
    this.#addArguments();
    this.#call = undefined;
    if (this.#kind === "content") this.#takeBody(char);
  }

  #addArguments(): void {
    const { draft } = this.#call ?? {};
    if (!draft || draft.arguments === "") return;
    this.#parts.push({ kind: "arguments", text: draft.arguments });
    draft.arguments = "";
  }

  #takeBody(char: string): void {
    this.#body += char;
    const mark = this.#markers.take(char);
    if (mark !== undefined) {
      this.#body = this.#body.slice(0, -mark.length);
      this.#close(mark);
      this.#openHead();
      if (mark === START) for (const each of mark) this.#take(each);
    } else if (this.#kind === "content" || this.#kind === "reasoning") {
      const free = this.#body.length - this.#markers.held;
      this.#add(this.#kind, this.#body.slice(0, free));
      this.#body = this.#body.slice(free);
    }
  }

  #close(mark: string): void {
    const body = this.#body;
    this.#body = "";
    if (this.#kind === "complete call") this.#parts.push({ kind: "call_end" });
    else if (this.#kind !== "call") this.#add(this.#kind, body);
    else if (this.#names.has(this.#name) && isJsonObject(body)) {
      this.#parts.push(
        { kind: "call", name: this.#name },
        { kind: "arguments", text: body.trim() },
        { kind: "call_end" },
      );
    } else this.#add("content", this.#head + body + (mark === START ? "" : mark));
  }

  #add(kind: "content" | "reasoning", text: string): void {
    this.#hasText ||= kind === "content" && text !== "";
    const last = this.#parts.at(-1);
    if (last?.kind === kind) last.text += text;
    else if (text !== "") this.#parts.push({ kind, text });
  }

  #drain(): MessagePart[] {
    const parts = this.#parts;
    this.#parts = [];
    return parts;
  }
}

function* readArgumentsOf(call: CallDraft): Reading<void> {
  yield* readArguments(call, yield* pastBlanks());
}

/** Reads a header up to and including <|message|>. The recipient is before or after the channel. */
function* readHead(): Reading<Head> {
  const head: Head = { channel: "", recipient: undefined };
  const at: At = { char: yield* pastBlanks() };
  for (;;) {
    if (at.char === "<") {
      const tag = yield* readTag();
      if (tag === "message") return head;
      if (tag === "start") yield* literal("assistant");
      yield* advance(at);
      if (tag === "start") continue;
      const text = yield* word(at, /\w/);
      if (tag === "channel") head.channel = text;
    } else if (head.channel !== "") {
      const text = yield* word(at, /[^\s<]/);
      // The text after the channel may also be the content type, which is ignored.
      if (text.startsWith("to=")) head.recipient = text.slice(3);
    } else {
      need(at.char, "t");
      yield* literal("o=");
      at.char = yield;
      head.recipient = yield* word(at, /[^\s<]/);
    }
  }
}

const TAGS = ["start", "channel", "constrain", "message"];

function* readTag(): Reading<string> {
  yield* literal("|");
  const at: At = { char: yield };
  const tag = yield* word(at, /[a-z]/);
  if (!TAGS.includes(tag)) throw new Mismatch();
  need(at.char, "|");
  yield* literal(">");
  return tag;
}

const TO = `${CHANNEL}commentary to=`;
const ROLE_TO = `${START}assistant to=`;

/** Returns the grammar of an answer. It allows at most one call, because a call ends the answer. */
function grammar(
  tools: readonly Tool[],
  { required }: GrammarOptions,
): StructuralTagFormat | undefined {
  if (tools.length === 0) return undefined;
  const tags = tools.map((tool) => tagOf(tool, `${TO}${NAMESPACE}${tool.name}`));
  if (required) {
    return { type: "sequence", elements: [optional(thought), { type: "or", elements: tags }] };
  }
  const roleTags = tools.map((tool) =>
    tagOf(tool, `${ROLE_TO}${NAMESPACE}${tool.name}${CHANNEL}commentary`),
  );
  return {
    type: "triggered_tags",
    triggers: [TO, ROLE_TO],
    tags: [...tags, ...roleTags],
    stop_after_first: true,
  };
}

const thought: StructuralTagFormat = {
  type: "sequence",
  elements: [
    {
      type: "tag",
      begin: `${CHANNEL}analysis<|message|>`,
      content: { type: "any_text" },
      end: "<|end|>",
    },
    { type: "const_string", value: `${START}assistant` },
  ],
};

function tagOf(tool: Tool, begin: string): TagFormat {
  const elements: StructuralTagFormat[] = [
    { type: "regex", pattern: "( ?<\\|constrain\\|>json| json)?<\\|message\\|>" },
    jsonArguments(tool),
  ];
  return { type: "tag", begin, content: { type: "sequence", elements }, end: "" };
}

function write({ name, arguments: given }: Call): string {
  return `${TO}${NAMESPACE}${name} <|constrain|>json<|message|>${given}`;
}
