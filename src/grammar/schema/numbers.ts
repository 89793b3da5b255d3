// Rules of JSON numbers within bounds, digit by digit.
import { byteClass } from "../pattern/alternatives.ts";
import type { Part, Rule } from "../pattern/rules.ts";
import type { Schema } from "./keywords.ts";
import type { RuleBook } from "./rule-book.ts";

const ANY_INTEGER = '("0" | "-"? [1-9] [0-9]{0,14})';
const ANY_NUMBER = '"-"? ("0" | [1-9] [0-9]{0,14}) ("." [0-9]{1,15})? ([eE] [+-]? [0-9]{1,2})?';

/** Maximum digits of a number: JSON parsers distinguish no more, and a model could write digits endlessly. */
const DIGITS = 15;

type Bound = { value: number; isStrict: boolean };

export function numberChoices(book: RuleBook, schema: Schema, at: string): Part[][] {
  const { format, multipleOf } = schema;
  const names = [schema.type].flat();
  const isWhole =
    (names.includes("integer") && !names.includes("number")) ||
    multipleOf === 1 ||
    format === "int32" ||
    format === "int64";
  if (multipleOf !== undefined && multipleOf !== 1) {
    book.refuse("multipleOf", at, "cannot be enforced");
  }
  const bounds = (...keys: string[]) =>
    keys.flatMap((key): Bound[] => {
      const value = schema[key];
      if (typeof value === "number") return [{ value, isStrict: key.startsWith("exclusive") }];
      if (value !== undefined) book.refuse(key, at, "must be a number");
      return [];
    });
  const low = bounds("minimum", "exclusiveMinimum");
  const high = bounds("maximum", "exclusiveMaximum");
  if (format === "int32") {
    low.push({ value: -(2 ** 31), isStrict: false });
    high.push({ value: 2 ** 31 - 1, isStrict: false });
  }
  const any = [[isWhole ? ANY_INTEGER : ANY_NUMBER]];
  if (low.length + high.length === 0) return any;
  const fractions = isWhole ? 0 : DIGITS;
  const choices = [
    ...magnitudes(book, 1, low, high, fractions),
    ...magnitudes(book, -1, high, low, fractions).map((choice) => ['"-"', ...choice]),
  ];
  if (choices.length > 0) return choices;
  book.refuse(low.length > 0 ? "minimum" : "maximum", at, "allows no value of 15 digits");
  return any;
}

/** Writes rules for the numbers of one sign. `near` and `far`: the bounds nearer to and farther from zero. */
function magnitudes(
  book: RuleBook,
  sign: 1 | -1,
  near: Bound[],
  far: Bound[],
  fractions: number,
): Part[][] {
  const lengths = Array.from({ length: DIGITS }, (_, i) => i + 1);
  return lengths.flatMap((whole): Part[][] => {
    // A number has at most 15 digits in total, so that different decimals are different doubles.
    const fraction = Math.max(fractions - whole, 0);
    const unit = 10n ** BigInt(fraction);
    const shortest = whole === 1 ? (sign < 0 ? 1n : 0n) : unit * 10n ** BigInt(whole - 1);
    const from = near.map(({ value, isStrict }) => {
      const { floor, isExact } = scaled(sign * value, fraction);
      return isExact && !isStrict ? floor : floor + 1n;
    });
    const to = far.map(({ value, isStrict }) => {
      const { floor, isExact } = scaled(sign * value, fraction);
      return isExact && isStrict ? floor - 1n : floor;
    });
    const first = from.reduce((a, b) => (a > b ? a : b), shortest);
    const last = to.reduce((a, b) => (a < b ? a : b), unit * 10n ** BigInt(whole) - 1n);
    if (first > last) return [];
    const text = (number: bigint) => `${number}`.padStart(whole + fraction, "0");
    return [[digits(book, text(first), text(last), whole, "whole")]];
  });
}

/** Writes digits, `whole` of them before the decimal point; trailing digits after the point are optional. */
function digits(
  book: RuleBook,
  from: string,
  to: string,
  whole: number,
  part: "whole" | "point" | "fraction",
): Rule {
  return book.rule(`digits ${from} ${to} ${whole} ${part}`, () => {
    const canEnd = whole === 0 && part !== "point" && /^0*$/.test(from);
    const choices: Part[][] = canEnd ? [[]] : [];
    if (from === "") return choices;
    if (whole === 0 && part === "whole") {
      return [...choices, ['"."', digits(book, from, to, 0, "point")]];
    }
    const [zeros, nines] = ["0", "9"].map((digit) => digit.repeat(from.length - 1));
    const [low, high] = [from.slice(1), to.slice(1)];
    const add = (first: number, last: number, a = zeros!, b = nines!) => {
      const rest = digits(book, a, b, Math.max(whole - 1, 0), part === "whole" ? part : "fraction");
      if (first <= last) choices.push([byteClass([[0x30 + first, 0x30 + last]]), rest]);
    };
    // The digits after this one are bounded only if this one equals the first digit of a bound.
    const [first, last] = [Number(from[0]), Number(to[0])];
    const [isLowFree, isHighFree] = [low === zeros, high === nines];
    if (first === last) add(first, last, low, high);
    else {
      if (!isLowFree) add(first, first, low, nines);
      if (!isHighFree) add(last, last, zeros, high);
      add(isLowFree ? first : first + 1, isHighFree ? last : last - 1);
    }
    return choices;
  });
}

/** Returns value * 10^power, rounded down, and whether that is exact. The value is read as its shortest decimal. */
function scaled(value: number, power: number): { floor: bigint; isExact: boolean } {
  const [mantissa, exponent] = value.toExponential().split("e") as [string, string];
  const [whole, fraction = ""] = mantissa.split(".") as [string, string?];
  const digits = BigInt(whole + fraction);
  const shift = Number(exponent) - fraction.length + power;
  if (shift >= 0) return { floor: digits * 10n ** BigInt(shift), isExact: true };
  const unit = 10n ** BigInt(-shift);
  const rest = digits % unit;
  return { floor: digits / unit - (rest < 0n ? 1n : 0n), isExact: rest === 0n };
}
