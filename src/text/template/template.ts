// A model's chat template renders messages into the text of the prompt. Templates run on a budget
// (template-interpreter.ts), and every failure is a TemplateError.
import { Environment, parse, tokenize } from "@huggingface/jinja";
import type { ErrorAnswer } from "../../error-answer.ts";
import type { TokenizerConfigJson } from "../tokenizer/tokenizer-json.ts";
import {
  BudgetExceeded,
  BudgetedInterpreter,
  type CompiledTemplate,
  compiledTemplate,
} from "./template-interpreter.ts";

export type TemplateFault =
  /** The template is invalid. */
  | "syntax"
  /** The template exceeds its work budget, nesting depth or length. */
  | "limit"
  /** The template called raise_exception. */
  | "raised"
  /** The template failed on these messages. */
  | "failed";

export class TemplateError extends Error {
  readonly fault: TemplateFault;
  readonly answer: ErrorAnswer;

  constructor(fault: TemplateFault, message: string) {
    super(message);
    this.name = "TemplateError";
    this.fault = fault;
    this.answer = answerTo(fault, message);
  }
}

function answerTo(fault: TemplateFault, message: string): ErrorAnswer {
  switch (fault) {
    case "raised": {
      const refusal = `The model's chat template refuses this: ${message}`;
      return { status: 400, message: refusal, param: "prompt" };
    }
    case "failed": {
      const failure = "The model's chat template cannot be applied to this.";
      return { status: 400, message: failure, param: "prompt" };
    }
    case "limit":
    case "syntax":
      return { status: 500, message: "The model's chat template cannot be used." };
  }
}

export interface ChatMessage {
  readonly role: string;
  readonly content?: unknown;
  readonly [field: string]: unknown;
}

export interface ChatInput {
  messages: readonly ChatMessage[];
  tools?: readonly unknown[] | undefined;
  /** Ends the prompt with the header of the assistant's turn. */
  addGenerationPrompt?: boolean;
  /** Leaves the last message open for continuation. */
  continueFinalMessage?: boolean;
  /** Additional template variables, such as enable_thinking. */
  kwargs?: Readonly<Record<string, unknown>>;
}

export interface ChatTemplate {
  /** Source of the template used without tools. */
  readonly source: string;
  /** Source of the template used with tools. */
  readonly toolSource: string;
  render(input: ChatInput): string;
}

export interface TemplateSources {
  /** tokenizer_config.json */
  config?: TokenizerConfigJson | undefined;
  /** chat_template.jinja, which takes precedence over the config's. */
  jinja?: string | undefined;
  /** GGUF's tokenizer.chat_template */
  gguf?: string | undefined;
}

export interface TemplateOptions {
  /** bos_token, eos_token and so on, by name. */
  namedTokens?: Readonly<Record<string, string>>;
  now?: () => Date;
}

const MAX_SOURCE = 128 * 1024;
/** Maximum length of a run of whitespace: the library's lexer takes quadratic time on it. */
const MAX_BLANKS = 512;
const MAX_MESSAGE = 500;
const BASE_STEPS = 500_000;
/** Steps allowed per step of input size (`stepsOf`): real templates read a message at most a few dozen times. */
const STEPS_PER_INPUT_STEP = 48;
/** Mark for the end of the last message, made of noncharacters. A space is written after it, to detect trimming. */
const CUT = "\uFDD0\uFDD3";

/** Compiles the model's chat template; undefined if it has none. */
export function chatTemplate(
  sources: TemplateSources,
  options: TemplateOptions = {},
): ChatTemplate | undefined {
  const named = namedSources(sources);
  const source = named.get("default") ?? named.values().next().value;
  if (source === undefined) return undefined;
  const plain = compile(source);
  const toolUse = named.get("tool_use");
  const withTools = toolUse === undefined ? plain : compile(toolUse);
  return {
    source,
    toolSource: toolUse ?? source,
    render: (input) => render(input.tools ? withTools : plain, input, options),
  };
}

function namedSources({ config, jinja, gguf }: TemplateSources): Map<string, string> {
  const listed = config?.chat_template ?? gguf;
  const named = new Map<string, string>();
  if (typeof listed === "string") named.set("default", listed);
  else for (const { name, template } of listed ?? []) named.set(name, template);
  if (jinja !== undefined) named.set("default", jinja);
  return named;
}

function compile(source: string): CompiledTemplate {
  if (source.length > MAX_SOURCE) {
    throw new TemplateError("limit", `the chat template is longer than ${MAX_SOURCE} characters`);
  }
  if (source.match(/\s+/g)?.some((blanks) => blanks.length > MAX_BLANKS)) {
    throw new TemplateError("limit", `the chat template has over ${MAX_BLANKS} spaces in a row`);
  }
  try {
    const tokens = tokenize(source.toWellFormed(), { lstrip_blocks: true, trim_blocks: true });
    return compiledTemplate(parse(tokens), source.length);
  } catch (error) {
    throw new TemplateError("syntax", `the chat template is invalid: ${messageOf(error)}`);
  }
}

function render(template: CompiledTemplate, input: ChatInput, options: TemplateOptions): string {
  const messages = input.continueFinalMessage ? withCut(input.messages) : input.messages;
  const given = {
    ...input.kwargs,
    ...options.namedTokens,
    messages,
    tools: input.tools ?? null,
    documents: input.kwargs?.documents ?? null,
    add_generation_prompt: input.addGenerationPrompt ?? false,
  };
  const text = run(template, given, options.now ?? (() => new Date()));
  return input.continueFinalMessage ? cut(text) : text;
}

function run(
  template: CompiledTemplate,
  given: Readonly<Record<string, unknown>>,
  now: () => Date,
): string {
  const environment = new Environment();
  const steps = BASE_STEPS + STEPS_PER_INPUT_STEP * stepsOf(given);
  const interpreter = new BudgetedInterpreter(environment, steps, template);
  const globals: Record<string, unknown> = {
    true: true,
    True: true,
    false: false,
    False: false,
    none: null,
    None: null,
    range: (...args: unknown[]) => range(args, (count) => interpreter.spend(count)),
    raise_exception: (message: unknown) => {
      throw new TemplateError("raised", stringOf(message).slice(0, MAX_MESSAGE));
    },
    strftime_now: (format: unknown) => strftime(now(), stringOf(format)),
  };
  try {
    for (const [name, value] of Object.entries({ ...given, ...globals })) {
      // `namespace` is built into the library and cannot be replaced.
      if (name !== "namespace") environment.set(name, value);
    }
    return String(interpreter.run(template.program).value);
  } catch (error) {
    if (error instanceof TemplateError) throw error;
    // A stack overflow, which is a RangeError, counts as an exceeded limit.
    const fault = error instanceof BudgetExceeded || error instanceof RangeError;
    const text = `the chat template failed: ${messageOf(error)}`;
    throw new TemplateError(fault ? "limit" : "failed", text);
  }
}

/** Returns a string unchanged; rejects other values, because serializing them might take too long. */
function stringOf(value: unknown): string {
  if (typeof value !== "string") throw new TypeError("expected a string");
  return value;
}

/** Estimates the size of a value in interpreter steps. */
function stepsOf(value: unknown): number {
  if (typeof value === "string") return 1 + value.length / 64;
  if (typeof value !== "object" || value === null) return 1;
  return Object.entries(value).reduce(
    (sum, [key, item]) => sum + key.length / 64 + stepsOf(item),
    1,
  );
}

function range(args: readonly unknown[], spend: (count: number) => void): number[] {
  const numbers = args.map((arg) => {
    if (!Number.isSafeInteger(arg)) throw new TypeError("range() takes integers");
    return Number(arg);
  });
  const [start, stop] = numbers.length === 1 ? [0, numbers[0]!] : [numbers[0]!, numbers[1]!];
  const step = numbers[2] ?? 1;
  if (numbers.length === 0 || numbers.length > 3 || step === 0) {
    throw new TypeError("range() takes a stop, or a start, a stop and an optional step");
  }
  const count = Math.max(0, Math.ceil((stop - start) / step));
  spend(count);
  return Array.from({ length: count }, (_, i) => start + i * step);
}

/** Marks the end of the last message's text. */
function withCut(messages: readonly ChatMessage[]): ChatMessage[] {
  const last = messages.at(-1);
  const content = last?.content;
  if (last && typeof content === "string") {
    return [...messages.slice(0, -1), { ...last, content: `${content}${CUT} ` }];
  }
  if (last && Array.isArray(content)) {
    const at = content.findLastIndex((part) => typeof part?.text === "string");
    if (at >= 0) {
      const part = { ...content[at], text: `${content[at].text}${CUT} ` };
      return [...messages.slice(0, -1), { ...last, content: content.with(at, part) }];
    }
  }
  throw new TemplateError("failed", "the final message has no text to continue");
}

function cut(text: string): string {
  const at = text.lastIndexOf(CUT);
  if (at < 0)
    throw new TemplateError("failed", "the chat template does not render the final message");
  // A template that trims messages has removed the space after the mark, so trailing whitespace is trimmed here too.
  const trimmed = text[at + CUT.length] !== " ";
  return trimmed ? text.slice(0, at).trimEnd() : text.slice(0, at);
}

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = [
  "January",
  "February",
  "March",
  "April",
  "May",
  "June",
  "July",
  "August",
  "September",
  "October",
  "November",
  "December",
];

/** Formats a date as Python's strftime in local time; directives that templates do not use stay unchanged. */
export function strftime(date: Date, format: string): string {
  const two = (value: number) => String(value).padStart(2, "0");
  const day = DAYS[date.getDay()]!;
  const month = MONTHS[date.getMonth()]!;
  const hour12 = date.getHours() % 12 || 12;
  const values: Readonly<Record<string, string>> = {
    Y: String(date.getFullYear()),
    y: two(date.getFullYear() % 100),
    m: two(date.getMonth() + 1),
    d: two(date.getDate()),
    A: day,
    a: day.slice(0, 3),
    B: month,
    b: month.slice(0, 3),
    H: two(date.getHours()),
    I: two(hour12),
    M: two(date.getMinutes()),
    S: two(date.getSeconds()),
    p: date.getHours() < 12 ? "AM" : "PM",
    "%": "%",
  };
  return format.replace(/%(-?)([YymdAaBbHIMSp%])/g, (_, bare: string, name: string) =>
    bare ? values[name]!.replace(/^0(?=\d)/, "") : values[name]!,
  );
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message.slice(0, MAX_MESSAGE) : String(error);
}
