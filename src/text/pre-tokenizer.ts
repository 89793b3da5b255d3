// Splits text into the pieces that the model encodes. Every step except two is a split at a pattern; patterns
// follow the Rust library, whose \s and digits differ from JavaScript's.
import { SplitPreTokenizer } from "@huggingface/tokenizers";
import {
  type PatternJson,
  type PreTokenizerJson,
  type SplitBehavior,
  unsupported,
} from "./tokenizer-json.ts";

/** `first`: the text starts the input. Some tokenizers prepend a space only there. */
export type PreTokenizer = (text: string, first: boolean) => string[];

export const GPT2_PATTERN =
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const PUNCTUATION = "[\\p{P}!-/:-@\\[-`{-~]";

export function preTokenizer(config: PreTokenizerJson | null | undefined): PreTokenizer {
  if (!config) return (text) => [text];
  switch (config.type) {
    case "Sequence":
      return sequence(config.pretokenizers.map(preTokenizer));
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

function sequence(steps: readonly PreTokenizer[]): PreTokenizer {
  return (text, first) =>
    steps.reduce(
      (pieces, step) => pieces.flatMap((piece, i) => step(piece, first && i === 0)),
      [text],
    );
}

/** The library's class translates Oniguruma's syntax to JavaScript. */
export function compilePattern(pattern: PatternJson): RegExp {
  const { pattern: compiled } = new SplitPreTokenizer({
    type: "Split",
    pattern,
    behavior: "Isolated",
    invert: false,
  });
  if (!compiled) throw new Error("tokenizer.json: a pattern is neither String nor Regex");
  return compiled;
}

function split(pattern: PatternJson, behavior: SplitBehavior, invert = false): PreTokenizer {
  const regex = compilePattern(pattern);
  return (text) => {
    const pieces: string[] = [];
    // Pending text, to be joined with the next piece or the next match.
    let open = "";
    let openIsMatch = false;
    const add = (piece: string, isMatch: boolean) => {
      if (piece === "") return;
      switch (behavior) {
        case "Removed":
          if (!isMatch) pieces.push(piece);
          break;
        case "Isolated":
          pieces.push(piece);
          break;
        case "MergedWithPrevious":
          // A match joins only a piece that is not a match itself.
          if (isMatch && !openIsMatch && pieces.length > 0) pieces.push(pieces.pop() + piece);
          else pieces.push(piece);
          openIsMatch = isMatch;
          break;
        case "MergedWithNext":
          if (isMatch) {
            if (open !== "") pieces.push(open);
            open = piece;
          } else {
            pieces.push(open + piece);
            open = "";
          }
          break;
        case "Contiguous":
          if (open !== "" && openIsMatch !== isMatch) {
            pieces.push(open);
            open = "";
          }
          open += piece;
          openIsMatch = isMatch;
          break;
      }
    };
    let end = 0;
    for (const match of text.matchAll(regex)) {
      add(text.slice(end, match.index), invert);
      add(match[0], !invert);
      end = match.index + match[0].length;
    }
    add(text.slice(end), invert);
    if (open !== "") pieces.push(open);
    return pieces;
  };
}

/** GPT-2's alphabet: each byte as one visible character. */
export const BYTE_CHARS: readonly string[] = (() => {
  const visible = (byte: number) =>
    (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) =>
    String.fromCharCode(visible(byte) ? byte : next++),
  );
})();

const utf8 = new TextEncoder();

function byteLevel(prefixSpace: boolean, useRegex: boolean): PreTokenizer {
  const cut = useRegex ? split({ Regex: GPT2_PATTERN }, "Isolated") : (text: string) => [text];
  return (text, first) => {
    const prefixed = prefixSpace && !text.startsWith(" ") ? ` ${text}` : text;
    return cut(prefixed, first).map((piece) => {
      let mapped = "";
      for (const byte of utf8.encode(piece)) mapped += BYTE_CHARS[byte];
      return mapped;
    });
  };
}

function metaspace(
  mark: string,
  scheme: "always" | "first" | "never",
  cuts: boolean,
): PreTokenizer {
  const cut = split({ String: mark }, "MergedWithNext");
  return (text, first) => {
    let marked = text.replaceAll(" ", mark);
    const prefix = scheme === "always" || (scheme === "first" && first);
    if (prefix && !marked.startsWith(mark)) marked = mark + marked;
    return cuts ? cut(marked, first) : [marked];
  };
}
