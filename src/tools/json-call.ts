// Calls that are written as JSON: {"name": …, "arguments": {…}}, alone or in a list.
import type { Call } from "./format.ts";
import { isBlank, Mismatch, need, pastBlanks, type Reading } from "./reading.ts";

/** An object, or a list of objects. */
export function* jsonCalls(first: string): Reading<Call[]> {
  if (first !== "[") return [yield* jsonCall(first)];
  const calls: Call[] = [];
  for (;;) {
    calls.push(yield* jsonCall(yield* pastBlanks()));
    const char = yield* pastBlanks();
    if (char === "]") return calls;
    need(char, ",");
  }
}

/** Some models add a type and an id; with anything else it is other JSON. */
const KEYS: ReadonlySet<string> = new Set(["name", "arguments", "parameters", "type", "id"]);

export function* jsonCall(first: string): Reading<Call> {
  need(first, "{");
  let name: string | undefined;
  let given: string | undefined;
  for (;;) {
    const key = yield* jsonString(yield* pastBlanks());
    if (!KEYS.has(key)) throw new Mismatch();
    need(yield* pastBlanks(), ":");
    const start = yield* pastBlanks();
    if (key === "arguments" || key === "parameters") given = yield* jsonObject(start);
    else {
      const text = yield* jsonString(start);
      if (key === "name") name = text;
    }
    const char = yield* pastBlanks();
    if (char === "}") break;
    need(char, ",");
  }
  if (name === undefined || given === undefined) throw new Mismatch();
  return { name, arguments: given };
}

export function writeJson({ name, arguments: given }: Call, key = "arguments"): string {
  return `{"name": ${JSON.stringify(name)}, "${key}": ${given}}`;
}

/** The text of an object. */
export function* jsonObject(first: string): Reading<string> {
  need(first, "{");
  return yield* jsonText(first);
}

function* jsonString(first: string): Reading<string> {
  need(first, '"');
  return JSON.parse(yield* jsonText(first));
}

function* jsonText(first: string): Reading<string> {
  const scanner = new JsonScanner();
  let text = "";
  for (let char = first; ; char = yield) {
    text += char;
    if (scanner.take(char)) return text;
  }
}

/** Whether a text is a JSON object, and nothing more. */
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

const SCALAR = /^(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)$/;

/** Knows where a string, an object or a list ends; throws a Mismatch at the first wrong character. */
class JsonScanner {
  /** What closes the objects and lists that are open. */
  readonly #closers: string[] = [];
  #next: "value" | "first value" | "key" | "first key" | "colon" | "comma" = "value";
  #string: "no" | "key" | "value" = "no";
  /** Characters of an escape that are still to come; after the backslash it is not known how many. */
  #escape: "none" | "open" | number = "none";
  #scalar = "";

  /** True once all of it is there. */
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
