// The log: a line an event to standard error, JSON for machines and plain text for a terminal. Nothing
// that a user wrote or was answered is in it, unless the server was told to log prompts.
import { pino } from "pino";
import { prettyFactory } from "pino-pretty";

export type Logger = pino.Logger;

export type LogOptions = {
  level: "debug" | "info" | "warn" | "error";
  format: "auto" | "json" | "pretty";
};

/** Whether a person reads it. */
export function isForPeople(format: LogOptions["format"]): boolean {
  return format === "pretty" || (format === "auto" && process.stderr.isTTY === true);
}

export function makeLogger({ level, format }: LogOptions): Logger {
  const options = { level, base: null, timestamp: pino.stdTimeFunctions.isoTime };
  if (!isForPeople(format)) {
    const lines = pino.destination({ dest: 2, sync: true });
    // A disk that is full costs lines of the log, not the server.
    lines.on("error", () => {});
    return pino(options, lines);
  }
  const pretty = prettyFactory({
    colorize: process.stderr.isTTY === true,
    translateTime: "SYS:HH:MM:ss",
    hideObject: true,
    messageFormat: (line) => messageOf(line),
  });
  return pino(options, { write: (line: string) => void process.stderr.write(pretty(line)) });
}

/** A request in a few words; anything else with all that is known of it. */
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
