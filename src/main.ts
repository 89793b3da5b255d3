// The command line: a verb, then its arguments. Flags without a verb belong to the default verb.
import { findVerb, helpOf } from "./cli/help.ts";
import { didYouMean } from "./cli/terminal/suggest.ts";
import { defaultVerb, type Verb, verbs } from "./cli/verbs.ts";
import { UsageError } from "./config/usage-error.ts";
import { codeOf } from "./hub/hub-error.ts";
import { printable, printableLines } from "./printable.ts";

try {
  const [name, args] = choose(process.argv.slice(2));
  await runVerb(findVerb(name, verbs), args);
} catch (error) {
  const message = error instanceof Error ? error.message : String(error);
  const isUsage = isWrongUsage(error);
  console.error(`mlx-serve: ${isUsage ? printableLines(message) : printable(message)}`);
  process.exitCode = isUsage ? 2 : 1;
}

async function runVerb(verb: Verb, args: string[]): Promise<void> {
  const { name, usage, flags, settings, run } = verb;
  if (asksForHelp(args)) return console.log(await helpOf(verb));
  if (args.length > 0 && !usage && !flags && !settings) {
    throw new UsageError(`${name} takes no arguments`);
  }
  try {
    await run(args);
  } catch (error) {
    throw codeOf(error) === "ERR_PARSE_ARGS_UNKNOWN_OPTION"
      ? unknownFlag(verb, error as Error)
      : error;
  }
}

/** Returns the error for an unknown flag; suggests the verb's most similar flag. */
function unknownFlag({ name, flags = [] }: Verb, { message }: Error): UsageError {
  const [, word = ""] = /'(-[^' =]*)/.exec(message) ?? [];
  const known = [...flags.flatMap(({ flag, aliases = [] }) => [flag, ...aliases]), "--help"];
  return new UsageError(`${name}: there is no flag ${word}${didYouMean(word, known)}`);
}

function choose(words: string[]): [verb: string, args: string[]] {
  const [first, ...rest] = words;
  if (first === "--help" || first === "-h") return ["help", rest];
  if (first === "--version") return ["version", rest];
  return first === undefined || first.startsWith("-") ? [defaultVerb, words] : [first, rest];
}

function asksForHelp(args: readonly string[]): boolean {
  const end = args.indexOf("--");
  const flags = end < 0 ? args : args.slice(0, end);
  return flags.includes("--help") || flags.includes("-h");
}

/** Returns whether an error means wrong arguments: a UsageError, or an error of parseArgs, which has a code. */
function isWrongUsage(error: unknown): boolean {
  return error instanceof UsageError || (codeOf(error) ?? "").startsWith("ERR_PARSE_ARGS_");
}
