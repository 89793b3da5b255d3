// The log: one line per event on standard error, JSON for machines and plain text for a terminal. It never
// contains prompts or answers, except prompts with --log-prompts.
import { pino } from "pino";
import { prettyFactory } from "pino-pretty";
import { printable } from "./printable.ts";

export type Logger = pino.Logger;

export type LogOptions = {
  level: "debug" | "info" | "warn" | "error";
  format: "auto" | "json" | "pretty";
};

/** Returns whether the log is for a terminal rather than for programs. */
export function isForPeople(format: LogOptions["format"]): boolean {
  return format === "pretty" || (format === "auto" && process.stderr.isTTY === true);
}

export function makeLogger({ level, format }: LogOptions): Logger {
  const options = {
    level,
    base: null,
    timestamp: pino.stdTimeFunctions.isoTime,
    serializers: { err: withoutAnswer },
  };
  if (!isForPeople(format)) {
    const lines = pino.destination({ dest: 2, sync: true });
    // A full disk loses log lines, but must not stop the server.
    lines.on("error", () => {});
    return pino(options, lines);
  }
  const pretty = prettyFactory({
    colorize: process.stderr.isTTY === true,
    translateTime: "SYS:HH:MM:ss",
    hideObject: true,
    messageFormat: (line) => printable(messageOf(line)),
  });
  return pino(options, { write: (line: string) => void process.stderr.write(pretty(line)) });
}

/** Removes the property `answer`, the client's version of the error, which says less than the error itself. */
function withoutAnswer(error: Error): object {
  const { answer: _, ...said } = pino.stdSerializers.err(error);
  return said;
}

/** Formats a request as a short line; any other event with all its fields. */
function messageOf({ level: _, time: __, msg, ...fields }: Record<string, unknown>): string {
  if (msg !== "request") {
    return Object.keys(fields).length > 0 ? `${msg} ${JSON.stringify(fields)}` : String(msg);
  }
  const { method, path, status, key, promptTokens, completionTokens, ms, error, prompt } = fields;
  return [
    `${method} ${path} ${status}`,
    promptTokens !== undefined && `${promptTokens}+${completionTokens} tokens`,
    `${ms} ms`,
    key !== undefined && key !== "anonymous" && `by ${key}`,
    error !== undefined && `(${error})`,
    prompt !== undefined && JSON.stringify(prompt),
  ]
    .filter(Boolean)
    .join("  ");
}
