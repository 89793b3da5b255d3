// Parses JSON from UTF-8 bytes.
import type { ErrorAnswer } from "../../error-answer.ts";

export type JsonFault = "utf-8" | "syntax";

export class JsonTextError extends Error {
  override name = "JsonTextError";
  readonly fault: JsonFault;
  readonly answer: ErrorAnswer;

  constructor(fault: JsonFault) {
    super(fault === "utf-8" ? "the text is not valid UTF-8" : "the text is not valid JSON");
    this.fault = fault;
    const message = `The body is not valid ${fault === "utf-8" ? "UTF-8" : "JSON"}.`;
    this.answer = { status: 400, message };
  }
}

/** Throws a JsonTextError. */
export function parseJson(bytes: Uint8Array): unknown {
  return parsed(decoded(bytes));
}

function decoded(bytes: Uint8Array): string {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new JsonTextError("utf-8");
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new JsonTextError("syntax");
  }
}
