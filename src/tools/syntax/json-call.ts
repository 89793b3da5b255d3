// Calls written as JSON: {"name": …, "arguments": {…}}, alone or in a list.
import type { Call, CallDraft } from "./format.ts";
import { isBlank, Mismatch, need, pastBlanks, type Reading } from "./reading.ts";

/** Reads a call, which is an object, or a list of calls. */
export function* jsonCalls(calls: CallDraft[], first: string): Reading<void> {
  if (first !== "[") return yield* jsonCall(calls, first);
  for (;;) {
    yield* jsonCall(calls, yield* pastBlanks());
    const char = yield* pastBlanks();
    if (char === "]") return;
    need(char, ",");
  }
}

const NAMES: ReadonlySet<string> = new Set(["name", "tool_name"]);
const ARGUMENTS: ReadonlySet<string> = new Set(["arguments", "parameters"]);
/** Other keys that some models add to a call; an object with any further key is not a call. */
const OTHERS: ReadonlySet<string> = new Set(["type", "id", "tool_call_id"]);

export function* jsonCall(calls: CallDraft[], first: string): Reading<void> {
  need(first, "{");
  const call: CallDraft = { name: undefined, arguments: "" };
  calls.push(call);
  let hasArguments = false;
  for (;;) {
    const key = yield* jsonString(yield* pastBlanks());
    const isName = NAMES.has(key);
    const isArguments = ARGUMENTS.has(key);
    if (!isName && !isArguments && !OTHERS.has(key)) throw new Mismatch();
    need(yield* pastBlanks(), ":");
    const start = yield* pastBlanks();
    if (isArguments) {
      if (hasArguments) throw new Mismatch();
      hasArguments = true;
      yield* jsonArguments(call, start);
    } else {
      const text = yield* jsonString(start);
      if (isName) call.name = text;
    }
    const char = yield* pastBlanks();
    if (char === "}") break;
    need(char, ",");
  }
  if (call.name === undefined || !hasArguments) throw new Mismatch();
}

export function writeJson({ name, arguments: given }: Call, key = "arguments"): string {
  return `{"name": ${JSON.stringify(name)}, "${key}": ${given}}`;
}

/** Reads an object and appends its text to the call's arguments as it arrives. */
export function* jsonArguments(call: CallDraft, first: string): Reading<void> {
  need(first, "{");
  yield* jsonText(first, (char) => {
    call.arguments += char;
  });
}

export function* jsonString(first: string): Reading<string> {
  need(first, '"');
  let text = "";
  yield* jsonText(first, (char) => {
    text += char;
  });
  return JSON.parse(text);
}

function* jsonText(first: string, take: (char: string) => void): Reading<void> {
  const scanner = new JsonScanner();
  for (let char = first; ; char = yield) {
    const isComplete = scanner.take(char);
    take(char);
    if (isComplete) return;
  }
}

/** Whether a text is exactly one JSON object. */
export function isJsonObject(text: string): boolean {
  const trimmed = text.trim();
  if (!trimmed.startsWith("{")) return false;
  try {
    JSON.parse(trimmed);
    return true;
  } catch {
    return false;
  }
}

/** Returns the parsed text, or the text itself if it is not JSON. */
export function jsonOrText(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

const SCALAR = /^(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)$/;

/** Finds the end of a string, an object or a list; throws a Mismatch at the first wrong character. */
export class JsonScanner {
  /** Closing brackets of the open objects and lists. */
  readonly #closers: string[] = [];
  #next: "value" | "first value" | "key" | "first key" | "colon" | "comma" = "value";
  #string: "no" | "key" | "value" = "no";
  /** Characters left in an escape; "open" directly after the backslash, when their number is unknown. */
  #escape: "none" | "open" | number = "none";
  #scalar = "";

  get isInString(): boolean {
    return this.#string !== "no";
  }

  /** Takes a character; returns whether the value is complete. */
  take(char: string): boolean {
    if (this.#string !== "no") return this.#takeInString(char);
    if (this.#scalar !== "") {
      if (/[\w.+-]/.test(char)) {
        this.#scalar += char;
        return false;
      }
      if (!SCALAR.test(this.#scalar)) throw new Mismatch();
      this.#scalar = "";
      this.#next = "comma";
    }
    if (isBlank(char)) return false;
    switch (this.#next) {
      case "colon":
        need(char, ":");
        this.#next = "value";
        return false;
      case "comma":
        if (char !== ",") return this.#close(char);
        this.#next = this.#closers.at(-1) === "}" ? "key" : "value";
        return false;
      case "first key":
        if (char === "}") return this.#close(char);
        return this.#openString(char, "key");
      case "key":
        return this.#openString(char, "key");
      case "first value":
        if (char === "]") return this.#close(char);
        return this.#open(char);
      case "value":
        return this.#open(char);
    }
  }

  #open(char: string): false {
    if (char === "{" || char === "[") {
      this.#closers.push(char === "{" ? "}" : "]");
      this.#next = char === "{" ? "first key" : "first value";
    } else if (char === '"') this.#openString(char, "value");
    else if (/[-\w]/.test(char)) this.#scalar = char;
    else throw new Mismatch();
    return false;
  }

  #openString(char: string, role: "key" | "value"): false {
    need(char, '"');
    this.#string = role;
    return false;
  }

  #close(char: string): boolean {
    if (char !== this.#closers.pop()) throw new Mismatch();
    this.#next = "comma";
    return this.#closers.length === 0;
  }

  #takeInString(char: string): boolean {
    if (this.#escape === "open") {
      if (!'"\\/bfnrtu'.includes(char)) throw new Mismatch();
      this.#escape = char === "u" ? 4 : "none";
    } else if (this.#escape !== "none") {
      if (!/[\da-fA-F]/.test(char)) throw new Mismatch();
      this.#escape = this.#escape > 1 ? this.#escape - 1 : "none";
    } else if (char === "\\") this.#escape = "open";
    else if (char < " ") throw new Mismatch();
    else if (char === '"') {
      this.#next = this.#string === "key" ? "colon" : "comma";
      this.#string = "no";
      return this.#closers.length === 0;
    }
    return false;
  }
}
