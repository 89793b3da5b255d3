// Reads settings from flags, MLX_SERVE_* variables and a file, in that order of precedence. An error names the
// unknown name or the invalid setting in one line, without any secret.
import { existsSync, readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { codeOf, quoted } from "../hub/hub-error.ts";
import { configFolder, type Environment, expandHome } from "../hub/settings.ts";
import { nearest } from "../nearest.ts";
import { flagsOf, type Setting, Settings, settingList } from "./settings.ts";
import { UsageError } from "./usage-error.ts";
import { otherVariables } from "./variables.ts";

export type LoadedSettings = {
  settings: Settings;
  /** Source of each setting: its flag, its variable, its key in the file, or "default". */
  sources: Readonly<Record<keyof Settings, string>>;
  /** Values that flags and variables set, as written, but with absolute paths. */
  written: readonly { readonly setting: Setting; readonly value: unknown }[];
};

/** A raw value and its origin; relative paths are resolved against `folder`. */
type Given = { setting: Setting; written: unknown; source: string; folder: string };
type Layer = Map<keyof Settings, Given>;

export function loadSettings(args: string[], env: Environment = process.env): LoadedSettings {
  const flags = readFlags(args);
  const variables = readVariables(env);
  const named = flags.get("config") ?? variables.get("config");
  const file = named ? readNamedFile(named, env) : readDefaultFile(env);
  const given: Layer = new Map([...file, ...variables, ...flags]);

  const values = given.entries().map(([key, each]) => [key, valueOf(each, env)]);
  const result = Settings.safeParse(Object.fromEntries(values));
  if (!result.success) {
    const { path, message } = result.error.issues[0]!;
    throw wrongValue(given.get(path[0] as keyof Settings)!, message);
  }
  const sources = settingList.map(({ key }) => [key, given.get(key)?.source ?? "default"]);
  const written = new Map([...variables, ...flags]).values();
  return {
    settings: result.data,
    sources: Object.fromEntries(sources),
    written: [...written.map((each) => ({ setting: each.setting, value: valueOf(each, env) }))],
  };
}

/** Removes the flags of the given settings, in all spellings, from a subcommand's arguments; returns their values. */
export function takeSettings<K extends keyof Settings>(
  args: readonly string[],
  keys: readonly K[],
): { taken: Partial<Pick<Settings, K>>; rest: string[] } {
  const layer: Layer = new Map();
  const [left, rest]: [string[], string[]] = [[...args], []];
  for (let arg = left.shift(); arg !== undefined; arg = left.shift()) {
    if (arg === "--") rest.push(arg, ...left.splice(0));
    else if (keys.includes(settingOf(arg)?.key as K)) readFlag(arg, left, layer);
    else rest.push(arg);
  }
  const taken = [...layer.values()].map((given) => {
    const { success, data, error } = Settings.shape[given.setting.key].safeParse(given.written);
    if (!success) throw wrongValue(given, error.issues[0]!.message);
    return [given.setting.key, data];
  });
  return { taken: Object.fromEntries(taken), rest };
}

const flagTable = new Map(
  settingList.flatMap((setting) =>
    flagsOf(setting).map(({ flag, ...rest }) => [flag, { setting, ...rest }] as const),
  ),
);

/** Flags of other programs, and the flags that they may mean here. */
const otherFlags: Readonly<Record<string, string>> = {
  "-v": "--verbose or --version",
  "-V": "--version",
};

/** Settings by name or alias, to suggest one similar to an unknown name. Only flags may use aliases. */
const settingByName = new Map(
  [...flagTable].map(([flag, { setting }]) => [
    flag.replace(/^-+/, "").replaceAll("-", "_"),
    setting,
  ]),
);

function readFlags(args: readonly string[]): Layer {
  const layer: Layer = new Map();
  const models: string[] = [];
  const rest = [...args];
  for (let arg = rest.shift(); arg !== undefined; arg = rest.shift()) {
    if (arg === "--") models.push(...rest.splice(0));
    else if (arg.startsWith("-")) readFlag(arg, rest, layer);
    else models.push(arg);
  }
  const [model] = models;
  if (models.length + (layer.has("model") ? 1 : 0) > 1) {
    // The message does not show the extra argument, which may be a key.
    throw new UsageError("more than one model given; repeat a flag to give it several values");
  }
  if (model !== undefined) {
    const setting = settingByName.get("model")!;
    layer.set("model", { setting, written: model, source: "<model>", folder: process.cwd() });
  }
  return layer;
}

/** Returns the setting of a flag, which may contain a value after =. */
function settingOf(arg: string): Setting | undefined {
  return flagTable.get(flagIn(arg).flag)?.setting;
}

function flagIn(arg: string): { name: string; flag: string; inline: string | undefined } {
  const [, name = "", inline] = /^([^=]*)(?:=(.*))?$/s.exec(arg)!;
  // Underscores count as dashes, as in other servers.
  return { name, flag: name.startsWith("--") ? name.replaceAll("_", "-") : name, inline };
}

/** Reads a flag's value, after = or from the next argument, into the layer. */
function readFlag(arg: string, rest: string[], layer: Layer): void {
  const { name, flag, inline } = flagIn(arg);
  const found = flagTable.get(flag);
  if (!found) {
    throw unknownName(shortened(name), otherFlags[flag] ?? nearest(flag, flagTable.keys()));
  }
  const { setting } = found;
  let written: unknown = inline;
  if ("sets" in found) {
    if (inline === undefined) written = found.sets;
    else if (flag !== setting.flag) throw new UsageError(`${flag}: takes no value`);
  } else if (inline === undefined) {
    if (rest[0] === undefined || isFlag(rest[0])) {
      throw new UsageError(`${flag}: ${setting.metavar} is missing`);
    }
    written = rest.shift();
  }
  if (setting.isList) written = [layer.get(setting.key)?.written ?? [], written].flat();
  layer.set(setting.key, { setting, written, source: flag, folder: process.cwd() });
}

/** Returns whether a word is a flag. A value may start with one dash, as some keys and numbers do. */
function isFlag(word: string): boolean {
  return word.startsWith("--") || flagTable.has(word);
}

function readVariables(env: Environment): Layer {
  const layer: Layer = new Map();
  const known = new Set(Object.keys(otherVariables));
  for (const setting of settingList) {
    for (const name of [...(setting.variables ?? []), setting.variable]) {
      known.add(name);
      const written = env[name];
      if (written === undefined) continue;
      layer.set(setting.key, { setting, written, source: name, folder: process.cwd() });
    }
  }
  for (const name of Object.keys(env)) {
    if (!name.startsWith("MLX_SERVE_") || known.has(name)) continue;
    const meant = nearestSetting(name.slice("MLX_SERVE_".length).toLowerCase())?.variable;
    throw unknownName(shortened(name), meant ?? nearest(name, known));
  }
  return layer;
}

function readNamedFile(named: Given, env: Environment): Layer {
  const path = pathOf(named, env);
  if (!existsSync(path)) throw new UsageError(`${named.source}: ${path} does not exist`);
  return readFile(path);
}

function readDefaultFile(env: Environment): Layer {
  const path = join(configFolder(env), "config.toml");
  return existsSync(path) ? readFile(path) : new Map();
}

function readFile(path: string): Layer {
  const layer: Layer = new Map();
  for (const [key, written] of Object.entries(parseToml(path))) {
    const name = key.replaceAll("-", "_");
    const setting = settingList.find((each) => each.name === name);
    if (!setting) throw unknownName(`${path}: ${shortened(key)}`, nearestSetting(name)?.name);
    if (setting.key === "config") throw new UsageError(`${path}: config: cannot be set in a file`);
    layer.set(setting.key, { setting, written, source: `${path}: ${key}`, folder: dirname(path) });
  }
  // Records which file the settings come from.
  const setting = settingByName.get("config")!;
  return layer.set("config", { setting, written: path, source: path, folder: dirname(path) });
}

function parseToml(path: string): object {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (cause) {
    throw new UsageError(`${path}: cannot be read (${codeOf(cause)})`);
  }
  try {
    return Bun.TOML.parse(text);
  } catch {
    // The parser's message lacks the line number and may contain a key, so it is replaced.
    const lines = text.split("\n");
    const whole = lines.findLastIndex((_, end) => isToml(lines.slice(0, end).join("\n")));
    throw new UsageError(`${path}: line ${whole + 1} is not TOML`);
  }
}

function isToml(text: string): boolean {
  try {
    Bun.TOML.parse(text);
    return true;
  } catch {
    return false;
  }
}

function valueOf(given: Given, env: Environment): unknown {
  const { setting, written } = given;
  if (typeof written !== "string" || written.trim() === "") return written;
  const isPath =
    setting.values === "file" || (setting.key === "model" && /^\.{1,2}\//.test(written));
  return isPath ? pathOf(given, env) : written;
}

function pathOf({ written, folder }: Given, env: Environment): string {
  return resolve(folder, expandHome(String(written), env));
}

function nearestSetting(name: string): Setting | undefined {
  return settingByName.get(nearest(name, settingByName.keys()) ?? "");
}

function unknownName(what: string, meant: string | undefined): UsageError {
  const hint = meant === undefined ? "" : `; did you mean ${meant}?`;
  return new UsageError(`${what}: unknown setting${hint}`);
}

function wrongValue({ setting, written, source }: Given, wanted: string): UsageError {
  const found = setting.isSecret ? "" : `, not ${shown(written)}`;
  return new UsageError(`${source}: expected ${wanted}${found}`);
}

function shown(written: unknown): string {
  if (Array.isArray(written)) return quoted(written.join(","));
  return typeof written === "object" ? "a table" : quoted(String(written));
}

/** Returns a name up to its first unusual character, because the rest may be a secret value. */
function shortened(name: string): string {
  const [start] = /^[\w.-]{0,60}/.exec(name)!;
  return start.length < name.length ? `${start}...` : start;
}
