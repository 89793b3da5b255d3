// Maps the tools of OpenAI's Responses API to functions, the only tools that models know: a custom tool becomes a
// function with a single argument, and a namespace becomes a prefix of its tools' names.
import type {
  CustomTool,
  FunctionTool,
  NamedTool,
  ResponseTool,
  ResponseToolChoice,
} from "../../api/openai/response-tools.ts";
import type { OfferedTool, ToolChoice } from "../../conversation/conversation.ts";
import { larkPattern } from "../../grammar/lark.ts";
import { LarkError } from "../../grammar/lark-terminals.ts";
import { badRequest } from "../frame/errors.ts";
import { objectSchema } from "../generate/openai-fields.ts";

export type ToolName = { name: string; namespace?: string | undefined };
export type KnownTool = ToolName & { type: "function" | "custom" };

/** Returns the function name that the model sees for a tool, including its namespace. */
export function flatName({ name, namespace }: ToolName): string {
  return namespace === undefined ? name : `${namespace}__${name}`;
}

/** Converts a custom tool's input to the arguments of its function. */
export function customArguments(input: string): string {
  return JSON.stringify({ input });
}

/** Returns a custom tool's input from its function's arguments; only a part if the arguments were cut off. */
export function customInput(text: string): string {
  return new CustomInput().push(text);
}

const INPUT = /^\s*\{\s*"input"\s*:\s*"/;
/** Matches characters and complete JSON escapes; never splits a surrogate pair. */
const DECODABLE =
  /^(?:[^"\\]+|\\["\\/bfnrt]|\\u(?![dD][89abAB])[\da-fA-F]{4}|\\u[dD][89abAB][\da-fA-F]{2}(?:\\u[\da-fA-F]{4}|(?=[^\\]|\\[^u])))*/;

/** Decodes the input of a custom tool's call incrementally. */
export class CustomInput {
  #isOpen = false;
  #rest = "";

  /** Returns the newly decodable part of the input. */
  push(text: string): string {
    this.#rest += text;
    if (!this.#isOpen) {
      const [begin] = INPUT.exec(this.#rest) ?? [];
      if (begin === undefined) return "";
      this.#isOpen = true;
      this.#rest = this.#rest.slice(begin.length);
    }
    const [written = ""] = DECODABLE.exec(this.#rest) ?? [];
    this.#rest = this.#rest.slice(written.length);
    return JSON.parse(`"${written}"`);
  }
}

export class ResponseTools {
  readonly #known = new Map<string, KnownTool>();
  readonly #offered: OfferedTool[] = [];
  #grammarChars = 0;

  /** Throws an ApiError if two tools share a name or a grammar cannot be enforced. */
  constructor(tools: readonly ResponseTool[]) {
    for (const [at, tool] of tools.entries()) {
      if (tool.type === "function" || tool.type === "custom") this.#add(tool, `tools.${at}`);
      if (tool.type !== "namespace") continue;
      for (const [i, own] of tool.tools.entries()) {
        this.#add(own, `tools.${at}.tools.${i}`, tool.name);
      }
    }
  }

  find(flat: string): KnownTool | undefined {
    return this.#known.get(flat);
  }

  /** Returns the tools that the model may call, and the tool choice. */
  choice(asked: ResponseToolChoice = "auto"): { tools: OfferedTool[]; toolChoice: ToolChoice } {
    const tools = this.#offered;
    if (typeof asked === "string") {
      if (asked === "required" && tools.length === 0) {
        throw wrongChoice("only allowed with tools");
      }
      return { tools, toolChoice: asked };
    }
    if (asked.type !== "allowed_tools") return { tools, toolChoice: { name: this.#nameOf(asked) } };
    const allowed = new Set(asked.tools.map((tool) => this.#nameOf(tool)));
    return { tools: tools.filter(({ name }) => allowed.has(name)), toolChoice: asked.mode };
  }

  #nameOf(tool: NamedTool): string {
    const flat = flatName(tool);
    if (this.#known.get(flat)?.type !== tool.type) {
      throw wrongChoice("the tool is not in tools");
    }
    return flat;
  }

  #add(tool: FunctionTool | CustomTool, param: string, namespace?: string): void {
    const { type, name, description } = tool;
    const flat = flatName({ name, namespace });
    if (this.#known.has(flat)) {
      throw badRequest("tools", `Invalid 'tools': two tools are named ${flat}.`, "invalid_value");
    }
    this.#known.set(flat, { type, name, namespace });
    this.#offered.push(
      tool.type === "custom"
        ? { name: flat, ...this.#custom(tool, param) }
        : {
            name: flat,
            description,
            parameters: objectSchema(tool.parameters),
            isStrict: tool.strict && tool.parameters !== undefined,
          },
    );
  }

  /** Converts a custom tool to a function. The model sees the tool's grammar; sampling enforces it as a regex. */
  #custom({ description, format }: CustomTool, param: string): Omit<OfferedTool, "name"> {
    if (format?.type !== "grammar") return { description, parameters: inputSchema({}) };
    const { syntax, definition } = format;
    this.#grammarChars += definition.length;
    if (this.#grammarChars > MAX_GRAMMAR_CHARS) {
      throw badRequest("tools", "Invalid 'tools': the grammars are too large.", "invalid_value");
    }
    const told = `The input has to match this ${languages[syntax]}:\n${definition}`;
    return {
      description: description === undefined ? told : `${description}\n\n${told}`,
      parameters: inputSchema({ pattern: `^(?:${patternOf(format, param)})$` }),
      shownParameters: inputSchema({}),
      isStrict: true,
    };
  }
}

/** Maximum characters of all grammars in a request together; parsing them blocks the main thread. */
const MAX_GRAMMAR_CHARS = 64 * 1024;

const languages = { lark: "grammar in Lark's language", regex: "regular expression" } as const;

function wrongChoice(problem: string) {
  return badRequest("tool_choice", `Invalid 'tool_choice': ${problem}.`, "invalid_value");
}

function inputSchema(more: { pattern?: string }): Record<string, unknown> {
  return {
    type: "object",
    properties: { input: { type: "string", ...more } },
    required: ["input"],
    additionalProperties: false,
  };
}

type GrammarFormat = Extract<NonNullable<CustomTool["format"]>, { type: "grammar" }>;

function patternOf({ syntax, definition }: GrammarFormat, param: string): string {
  if (syntax === "regex") return definition;
  try {
    return larkPattern(definition);
  } catch (error) {
    if (!(error instanceof LarkError)) throw error;
    const field = `${param}.format.definition`;
    throw badRequest(field, `Invalid '${field}': the grammar ${error.message}.`, "invalid_value");
  }
}
