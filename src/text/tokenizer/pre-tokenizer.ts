// Splits text into the pieces that the model encodes. All but two steps split at a pattern; patterns follow the Rust
// library, whose \s and digits differ from JavaScript's.
import { SplitPreTokenizer } from "@huggingface/tokenizers";
import { GPT2_PATTERN } from "./split-patterns.ts";
import type { Spelling } from "./token-model.ts";
import {
  type PatternJson,
  type PreTokenizerJson,
  type SplitBehavior,
  unsupported,
} from "./tokenizer-json.ts";

/** Splits a text. `first`: whether it starts the input, because some tokenizers prepend a space only there. */
export type PreTokenizer = (text: string, first: boolean) => Iterable<string>;

const REPLACED_CHARS = 2 ** 15;
const PUNCTUATION = "[\\p{P}!-/:-@\\[-`{-~]";

/** Splits at each pattern in turn, isolating matches, and spells the pieces in GPT-2's byte alphabet. */
export function byteLevelSplits(patterns: readonly string[]): PreTokenizerJson {
  return {
    type: "Sequence",
    pretokenizers: [
      ...patterns.map(
        (Regex) => ({ type: "Split", pattern: { Regex }, behavior: "Isolated" }) as const,
      ),
      { type: "ByteLevel", use_regex: false },
    ],
  };
}

/** Returns `cut`, which splits text into pieces, and `spell`, which writes a piece as the vocabulary does. */
export function preTokenizer(config: PreTokenizerJson | null | undefined): {
  cut: PreTokenizer;
  spell: Spelling;
} {
  const steps = config ? stepsOf(config) : [];
  const isByteLevel = steps.at(-1)?.type === "ByteLevel";
  const cuts = steps.map((step, i) => {
    const cut = preTokenizerStep(step);
    // A ByteLevel step spells the text here unless it is the last: `spell` does that later, only for encoded pieces.
    return step.type === "ByteLevel" && i < steps.length - 1 ? spelled(cut) : cut;
  });
  return { cut: sequence(cuts), spell: isByteLevel ? byteSpelling : (text) => text };
}

function stepsOf(config: PreTokenizerJson): PreTokenizerJson[] {
  return config.type === "Sequence" ? config.pretokenizers.flatMap(stepsOf) : [config];
}

function preTokenizerStep(config: PreTokenizerJson): PreTokenizer {
  switch (config.type) {
    case "Split":
      return split(config.pattern, config.behavior, config.invert ?? false);
    case "ByteLevel":
      return byteLevel(config.add_prefix_space ?? false, config.use_regex ?? true);
    case "Metaspace":
      return metaspace(
        config.replacement ?? "▁",
        config.prepend_scheme ?? (config.add_prefix_space === false ? "never" : "always"),
        config.split ?? true,
      );
    case "Digits":
      return split({ Regex: config.individual_digits ? "\\p{N}" : "\\p{N}+" }, "Isolated");
    case "Punctuation":
      return split({ Regex: PUNCTUATION }, config.behavior ?? "Isolated");
    case "CharDelimiterSplit":
      return split({ String: config.delimiter }, "Removed");
    case "BertPreTokenizer":
      return sequence([
        split({ Regex: "\\s+" }, "Removed"),
        split({ Regex: PUNCTUATION }, "Isolated"),
      ]);
    case "Whitespace":
      return split({ Regex: "\\w+|[^\\w\\s]+" }, "Removed", true);
    case "WhitespaceSplit":
      return split({ Regex: "\\s+" }, "Removed");
    default:
      throw unsupported("pre-tokenizer", config);
  }
}

const whole: PreTokenizer = (text) => [text];

function sequence(steps: readonly PreTokenizer[]): PreTokenizer {
  const [first = whole, ...others] = steps;
  return others.reduce((before, step) => {
    return function* (text, isStart) {
      let starts = isStart;
      for (const piece of before(text, isStart)) {
        yield* step(piece, starts);
        starts = false;
      }
    };
  }, first);
}

/** Patterns and faster equivalents. Trying each blank of a run is quadratic; only the first can start a match. */
const LINEAR: Readonly<Record<string, string>> = { "\\s+$": "(?<!\\s)\\s+$" };

/** Compiles a pattern; the library's class translates Oniguruma's syntax to JavaScript. */
export function compilePattern(pattern: PatternJson): RegExp {
  const { pattern: compiled } = new SplitPreTokenizer({
    type: "Split",
    pattern: "Regex" in pattern ? { Regex: LINEAR[pattern.Regex] ?? pattern.Regex } : pattern,
    behavior: "Isolated",
    invert: false,
  });
  if (!compiled) throw new Error("tokenizer.json: a pattern is neither String nor Regex");
  return compiled;
}

/** Whether a part of the text is merged with the part before it, for each split behavior. */
const JOINS: Readonly<Record<SplitBehavior, (wasMatch: boolean, isMatch: boolean) => boolean>> = {
  Removed: () => false,
  Isolated: () => false,
  MergedWithPrevious: (wasMatch, isMatch) => isMatch && !wasMatch,
  MergedWithNext: (wasMatch, isMatch) => wasMatch && !isMatch,
  Contiguous: (wasMatch, isMatch) => wasMatch === isMatch,
};

function split(pattern: PatternJson, behavior: SplitBehavior, invert = false): PreTokenizer {
  const regex = compilePattern(pattern);
  const joins = JOINS[behavior];
  return function* (text) {
    // The current piece, which the next part may still join.
    let [start, end, wasMatch] = [0, 0, false];
    for (const { isMatch, end: partEnd } of partsOf(text, regex, invert)) {
      if (end > start && !joins(wasMatch, isMatch)) {
        if (behavior !== "Removed" || !wasMatch) yield text.slice(start, end);
        start = end;
      }
      [end, wasMatch] = [partEnd, isMatch];
    }
    if (end > start && (behavior !== "Removed" || !wasMatch)) yield text.slice(start, end);
  };
}

/** Yields the matching and non-matching parts of the text in order, each by its end offset. */
function* partsOf(
  text: string,
  regex: RegExp,
  invert: boolean,
): Generator<{ isMatch: boolean; end: number }> {
  let end = 0;
  for (const { 0: match, index } of text.matchAll(regex)) {
    if (index > end) yield { isMatch: invert, end: index };
    end = index + match.length;
    if (match !== "") yield { isMatch: !invert, end };
  }
  if (text.length > end) yield { isMatch: invert, end: text.length };
}

/** GPT-2's byte alphabet: each byte as one visible character. */
export const BYTE_CHARS: readonly string[] = (() => {
  const visible = (byte: number) =>
    (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) =>
    String.fromCharCode(visible(byte) ? byte : next++),
  );
})();

const utf8 = new TextEncoder();

const byteUnits = Uint16Array.from(BYTE_CHARS, (char) => char.charCodeAt(0));
// Scratch memory of `byteSpelling`, which never nests.
let bytes = new Uint8Array(0);
let units = new Uint16Array(0);

/** Spells each byte of the text in GPT-2's byte alphabet. */
function byteSpelling(text: string): string {
  // A UTF-16 unit takes at most 3 bytes in UTF-8.
  if (3 * text.length > bytes.length) {
    bytes = new Uint8Array(6 * text.length);
    units = new Uint16Array(bytes.length);
  }
  const { written } = utf8.encodeInto(text, bytes);
  for (let i = 0; i < written; i++) units[i] = byteUnits[bytes[i]!]!;
  return Buffer.from(units.buffer).toString("utf16le", 0, 2 * written);
}

function spelled(cut: PreTokenizer): PreTokenizer {
  return function* (text, first) {
    for (const piece of cut(text, first)) yield byteSpelling(piece);
  };
}

function byteLevel(prefixSpace: boolean, useRegex: boolean): PreTokenizer {
  const cut = useRegex ? split({ Regex: GPT2_PATTERN }, "Isolated") : whole;
  return (text, first) => cut(prefixSpace && !text.startsWith(" ") ? ` ${text}` : text, first);
}

function metaspace(
  mark: string,
  scheme: "always" | "first" | "never",
  cuts: boolean,
): PreTokenizer {
  const cut = split({ String: mark }, "MergedWithNext");
  return (text, first) => {
    const marked = spacesReplaced(text, mark);
    const isPrefixed = scheme === "always" || (scheme === "first" && first);
    const prefixed = isPrefixed && !marked.startsWith(mark) ? mark + marked : marked;
    return cuts ? cut(prefixed, first) : [prefixed];
  };
}

/** Replaces spaces part by part, because replaceAll takes some 20 bytes per space. */
function spacesReplaced(text: string, mark: string): string {
  const parts: string[] = [];
  for (let start = 0; start < text.length; start += REPLACED_CHARS) {
    parts.push(text.slice(start, start + REPLACED_CHARS).replaceAll(" ", mark));
  }
  return parts.join("");
}
