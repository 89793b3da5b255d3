// mlx-serve keys add|ls|revoke: manages the API keys in the keys file.
import { type ParseArgsOptionsConfig, parseArgs } from "node:util";
import { loadSettings } from "../config/load.ts";
import { UsageError } from "../config/usage-error.ts";
import type { Environment } from "../hub/settings.ts";
import {
  addKey,
  KeyEntry,
  KeyFileError,
  keyFileOf,
  keyFileWarning,
  readKeyFile,
  revokeKey,
} from "../keys/key-file.ts";
import { print } from "./terminal/print.ts";
import { didYouMean } from "./terminal/suggest.ts";
import { table } from "./terminal/table.ts";

const usage =
  "mlx-serve keys add <name> [--tier HIGH|NORMAL|LOW] [--requests-per-minute N] " +
  "[--tokens-per-minute N] [--concurrent N] | keys ls [--json] | keys revoke <name>; " +
  "all take --keys-file <path>";

const fileOption = { "keys-file": { type: "string" } } as const;

const verbs = new Map(Object.entries({ add, ls, revoke }));

export async function keys(args: string[], env: Environment = process.env): Promise<void> {
  const [verb = "", ...more] = args;
  const chosen = verbs.get(verb);
  if (!chosen) {
    const hint = verb === "" ? "" : didYouMean(verb, [...verbs.keys()]);
    throw new UsageError(hint ? `no verb keys ${verb}${hint}` : `usage: ${usage}`);
  }
  chosen(more, env);
}

function add(args: string[], env: Environment): void {
  const { values, positionals } = parsed(args, {
    ...fileOption,
    tier: { type: "string", default: "NORMAL" },
    "requests-per-minute": { type: "string" },
    "tokens-per-minute": { type: "string" },
    concurrent: { type: "string" },
  });
  const entry = {
    name: nameOf(positionals),
    tier: tierOf(values.tier),
    limits: {
      requests_per_minute: limitOf("requests-per-minute", values["requests-per-minute"]),
      tokens_per_minute: limitOf("tokens-per-minute", values["tokens-per-minute"]),
      concurrent: limitOf("concurrent", values.concurrent),
    },
  };
  const path = pathOf(values, env);
  const key = addKey(path, entry);
  if (key === undefined) {
    throw new KeyFileError(`a key named ${entry.name} exists: revoke it, or choose another name`);
  }
  // Only the key goes to stdout, so that scripts can read it.
  console.log(key);
  console.error(
    `This is the key of ${entry.name}; it is shown only once; ${path} stores its hash.\n${afterChange}`,
  );
}

function ls(args: string[], env: Environment): void {
  const { values, positionals } = parsed(args, { ...fileOption, json: { type: "boolean" } });
  if (positionals.length > 0) throw new UsageError(`usage: ${usage}`);
  const path = pathOf(values, env);
  const rows = (readKeyFile(path)?.keys ?? []).map(({ sha256: _, ...row }) => row);
  const warning = keyFileWarning(path);
  if (warning) console.error(warning);
  print(values.json ? JSON.stringify(rows, null, 2) : tableOf(rows));
}

function revoke(args: string[], env: Environment): void {
  const { values, positionals } = parsed(args, fileOption);
  const revoked = nameOf(positionals);
  const path = pathOf(values, env);
  if (!revokeKey(path, revoked)) throw new KeyFileError(`no key is named ${revoked} in ${path}`);
  console.log(`${revoked} is revoked. ${afterChange}`);
}

const afterChange = "A running server applies it on restart or SIGHUP.";

function parsed<const T extends ParseArgsOptionsConfig>(args: string[], options: T) {
  try {
    return parseArgs({ args, options, allowPositionals: true });
  } catch (error) {
    throw new UsageError((error as Error).message.split("\n")[0]!);
  }
}

/** Returns the path of the keys file that `serve` would use, from all sources of settings. */
function pathOf(values: { "keys-file"?: string | undefined }, env: Environment): string {
  const flag = values["keys-file"];
  const { settings } = loadSettings(flag === undefined ? [] : [`--keys-file=${flag}`], env);
  return keyFileOf(settings, env);
}

function nameOf([name, ...more]: readonly string[]): string {
  if (name === undefined || more.length > 0) throw new UsageError(`usage: ${usage}`);
  const { data, error } = KeyEntry.shape.name.safeParse(name);
  if (data !== undefined) return data;
  throw new UsageError(`the name of a key: ${error!.issues[0]!.message}`);
}

function tierOf(tier: string): KeyEntry["tier"] {
  const { data } = KeyEntry.shape.tier.safeParse(tier.toUpperCase());
  if (data) return data;
  throw new UsageError("--tier: expected HIGH, NORMAL or LOW");
}

function limitOf(flag: string, value: string | undefined): number | undefined {
  if (value === undefined) return undefined;
  if (/^[1-9]\d{0,14}$/.test(value)) return Number(value);
  throw new UsageError(`--${flag}: expected a whole number above 0`);
}

function tableOf(rows: readonly Omit<KeyEntry, "sha256">[]): string {
  return table(
    ["NAME", "TIER", "REQUESTS/MIN", "TOKENS/MIN", "CONCURRENT", "CREATED"],
    rows.map(({ name, tier, limits, created }) => [
      name,
      tier,
      `${limits.requests_per_minute ?? "-"}`,
      `${limits.tokens_per_minute ?? "-"}`,
      `${limits.concurrent ?? "-"}`,
      created.slice(0, 10),
    ]),
  );
}
