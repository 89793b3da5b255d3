// The command line: one verb, then its arguments. Flags without a verb are those of the default one.
import { findVerb, helpOf } from "./cli/help.ts";
import { defaultVerb, verbs } from "./cli/verbs.ts";
import { UsageError } from "./config/usage-error.ts";
import { printable, printableLines } from "./printable.ts";

try {
  const [name, args] = choose(process.argv.slice(2));
  const verb = findVerb(name, verbs);
  if (asksForHelp(args)) console.log(await helpOf(verb));
  else if (args.length > 0 && !verb.usage && !verb.flags && !verb.settings) {
    throw new UsageError(`${name} takes no arguments`);
  } else await verb.run(args);
} catch (error) {
  const message = error instanceof Error ? error.message : String(error);
  const isUsage = isWrongUsage(error);
  console.error(`mlx-serve: ${isUsage ? printableLines(message) : printable(message)}`);
  process.exitCode = isUsage ? 2 : 1;
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

/** parseArgs has codes for what it refuses. */
function isWrongUsage(error: unknown): boolean {
  if (error instanceof UsageError) return true;
  const code = error instanceof Error && "code" in error ? String(error.code) : "";
  return code.startsWith("ERR_PARSE_ARGS_");
}
