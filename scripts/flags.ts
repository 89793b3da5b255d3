// Parses the flags of a script, which are defined by their defaults: `--kv-heads 8` is { kvHeads: 8 }.
import { parseArgs } from "node:util";

type Value<T> = T extends number ? number : T extends boolean ? boolean : string;
type Flags<T> = { [Key in keyof T]: Value<T[Key]> };

export const flagOf = (key: string) =>
  `--${key.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;

export function readFlags<T extends Record<string, string | number | boolean>>(
  defaults: T,
  allowPositionals = false,
): Flags<T> & { positionals: string[] } {
  const nameOf = (key: string) => flagOf(key).slice(2);
  const options = Object.fromEntries(
    Object.entries(defaults).map(([key, value]) => [
      nameOf(key),
      { type: typeof value === "boolean" ? ("boolean" as const) : ("string" as const) },
    ]),
  );
  const { values, positionals } = parseArgs({ options, allowPositionals, allowNegative: true });
  const read = Object.entries(defaults).map(([key, value]) => {
    const given = values[nameOf(key)] ?? value;
    if (typeof value !== "number") return [key, given];
    if (!Number.isFinite(Number(given))) throw new Error(`${flagOf(key)} takes a number`);
    return [key, Number(given)];
  });
  return { ...(Object.fromEntries(read) as Flags<T>), positionals };
}
