// mlx-serve help, and --help of every verb.
import { UsageError } from "../config/usage-error.ts";
import { otherVariables } from "../config/variables.ts";
import { didYouMean } from "./terminal/suggest.ts";
import type { Flag, Verb } from "./verbs.ts";

export async function help(
  args: readonly string[],
  verbs: readonly Verb[],
  defaultVerb: string,
): Promise<void> {
  const [name, ...more] = args;
  if (more.length > 0) throw new UsageError("help takes one verb");
  if (name === undefined) return console.log(overview(verbs, defaultVerb));
  console.log(await helpOf(findVerb(name, verbs)));
}

export function findVerb(name: string, verbs: readonly Verb[]): Verb {
  const found = verbs.find((verb) => verb.name === name);
  if (found) return found;
  const names = verbs.map((verb) => verb.name);
  const hint = didYouMean(name, names) || `; there are ${names.join(", ")}`;
  throw new UsageError(`no verb ${name}${hint}`);
}

export async function helpOf(verb: Verb): Promise<string> {
  const { summary, flags = [], settings } = verb;
  const usage = `mlx-serve ${usageOf(verb)}`;
  if (settings) {
    const { settingsHelp } = await import("../config/help.ts");
    const width = Math.min(Math.max(process.stdout.columns ?? 80, 80), 100);
    const own = flags.length === 0 ? [] : [columns(flags.map(rowOf))];
    return [`${usage} [settings]`, summary, ...own, settingsHelp(width)].join("\n\n");
  }
  if (flags.length === 0) return `${usage}\n\n${summary}`;
  return `${usage} [flags]\n\n${summary}\n\n${columns(flags.map(rowOf))}`;
}

function rowOf({ flag, aliases = [], metavar, text }: Flag): readonly [string, string] {
  const spelled = [flag, ...aliases].join(", ");
  return [metavar ? `${spelled} ${metavar}` : spelled, text];
}

const usageOf = ({ name, usage }: Verb) => (usage === undefined ? name : `${name} ${usage}`);

const exitCodes = {
  0: "done",
  1: "failure",
  2: "wrong usage: an unknown verb, flag, variable or key, or an invalid value",
  130: "interrupted",
};

const variables = {
  MLX_SERVE_BACKEND: "cpu, metal or cuda (Metal on a Mac, else the CPU)",
  MLX_SERVE_THREADS: "BLAS threads (one per core)",
  MLX_SERVE_LOG: "debug: a JSON line per step, with all its requests",
  ...otherVariables,
};

function overview(verbs: readonly Verb[], defaultVerb: string): string {
  return `mlx-serve [verb] [arguments]; without a verb it is ${defaultVerb}

${columns(verbs.map((verb) => [usageOf(verb), verb.summary]))}

A model is a folder, a GGUF file, a repo of the cache, a short name such as
qwen3:4b, or "default"; a repo is org/name, org/name@revision or org/name:file.
Each verb answers --help.

Exit codes
${columns(Object.entries(exitCodes))}

Environment
${columns(Object.entries(variables))}`;
}

function columns(rows: readonly (readonly [string, string])[]): string {
  const width = Math.max(...rows.map(([left]) => left.length));
  return rows.map(([left, right]) => `  ${left.padEnd(width)}  ${right}`).join("\n");
}
