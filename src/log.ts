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

/** Whether the log is for a terminal. */
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
    // A full disk loses log lines, but does not stop the server.
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

/** The client's message is not for the log: it says less than the error. */
function withoutAnswer(error: Error): object {
  const { answer: _, ...said } = pino.stdSerializers.err(error);
  return said;
}

/** A short line for a request; all fields for any other event. */
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
