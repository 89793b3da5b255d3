// SentencePiece's normalizer: replaces characters as the model's precompiled map says, replaces spaces by ▁, and
// prepends a ▁.
import { LoadError } from "../../files/load-error.ts";
import { matcher } from "../tokenizer/added-tokens.ts";
import type { Normalizer } from "../tokenizer/normalizer.ts";

export type SentencePieceNormalizerOptions = {
  /** Trie from byte sequences to their replacements. */
  charsMap?: Uint8Array | undefined;
  /** Where ▁ is prepended: never, to the input, or to each text between control tokens. */
  prefix: "none" | "first" | "each";
  /** Whether to trim spaces at both ends and collapse runs of spaces. */
  removeExtraSpaces: boolean;
  /** User-defined symbols, which normalization leaves unchanged. */
  symbols?: readonly string[];
};

const SPACE_MARK = "▁";

/** Characters between yields: a few milliseconds of work. */
const YIELD_CHARS = 2 ** 15;

export function sentencePieceNormalizer(options: SentencePieceNormalizerOptions): Normalizer {
  const { prefix, removeExtraSpaces } = options;
  const replacement = options.charsMap?.length ? charsMapOf(options.charsMap) : undefined;
  const symbols = matcher(options.symbols ?? [], "y");

  const isPlain = !replacement && !symbols && !removeExtraSpaces;

  /** Normalizes the characters at an offset; returns the result and the number of characters consumed. */
  function step(text: string, at: number): { made: string; length: number } {
    if (isPlain) return { made: text.slice(at, at + YIELD_CHARS), length: YIELD_CHARS };
    if (symbols) {
      symbols.lastIndex = at;
      const found = symbols.exec(text)?.[0];
      if (found) return { made: found, length: found.length };
    }
    const replaced = replacement?.(text, at);
    if (replaced) return replaced;
    const length = text.codePointAt(at)! > 0xffff ? 2 : 1;
    return { made: text.slice(at, at + length), length };
  }

  return function* (text, first) {
    const parts: string[] = [];
    let part = "";
    let afterSpace = removeExtraSpaces;
    let yieldAt = YIELD_CHARS;
    for (let at = 0; at < text.length; ) {
      const { made, length } = step(text, at);
      at += length;
      const kept = afterSpace ? made.replace(/^ +/, "") : made;
      if (kept !== "") afterSpace = removeExtraSpaces && kept.endsWith(" ");
      part += kept;
      if (at < yieldAt) continue;
      yieldAt = at + YIELD_CHARS;
      parts.push(part.replaceAll(" ", SPACE_MARK));
      part = "";
      yield;
    }
    parts.push(part.replaceAll(" ", SPACE_MARK));
    const whole = parts.join("");
    const normalized = removeExtraSpaces ? trimEnd(whole) : whole;
    const isPrefixed = prefix === "each" || (prefix === "first" && first);
    // A text that normalizes to nothing gets no ▁, unless its spaces are kept.
    const isEmpty = removeExtraSpaces ? normalized === "" : text === "";
    return isPrefixed && !isEmpty ? SPACE_MARK + normalized : normalized;
  };
}

function trimEnd(text: string): string {
  let end = text.length;
  while (end > 0 && text[end - 1] === SPACE_MARK) end--;
  return text.slice(0, end);
}

/**
 * Reads the precompiled map: the size of a trie in bytes, the trie (a double array as in darts-clone), and
 * zero-terminated replacements; the trie's values are offsets of replacements. The longest match wins.
 */
function charsMapOf(bytes: Uint8Array) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const trieBytes = bytes.length >= 4 ? view.getUint32(0, true) : 0;
  if (trieBytes === 0 || trieBytes % 4 !== 0 || trieBytes > bytes.length - 4) {
    throw new LoadError("the normalizer's precompiled map has no valid trie");
  }
  const units = Uint32Array.from({ length: trieBytes / 4 }, (_, i) =>
    view.getUint32(4 + 4 * i, true),
  );
  const texts = bytes.subarray(4 + trieBytes);
  const utf8 = new TextDecoder("utf-8", { ignoreBOM: true });
  const textAt = (offset: number) => utf8.decode(texts.subarray(offset, texts.indexOf(0, offset)));

  const offsetOf = (unit: number) => (unit >>> 10) << ((unit & 0x200) >>> 6);
  let node = 0;
  /** Follows the edge of a byte from the current node; returns the unit it leads to, or undefined. */
  const follow = (byte: number) => {
    const unit = units[node ^ byte];
    if (unit === undefined || (unit & 0x800000ff) !== byte) return undefined;
    node ^= byte ^ offsetOf(unit);
    return unit;
  };

  return (text: string, start: number): { made: string; length: number } | undefined => {
    node = offsetOf(units[0]!);
    let found: { made: string; length: number } | undefined;
    for (let at = start; at < text.length; ) {
      const code = text.codePointAt(at)!;
      at += code > 0xffff ? 2 : 1;
      let unit: number | undefined;
      for (const byte of utf8Bytes(code)) {
        unit = follow(byte);
        if (unit === undefined) return found;
      }
      const isLeaf = (unit! & 0x100) !== 0;
      if (isLeaf) found = { made: textAt((units[node] ?? 0) & 0x7fffffff), length: at - start };
    }
    return found;
  };
}

function utf8Bytes(code: number): readonly number[] {
  if (code < 0x80) return [code];
  const last = 0x80 | (code & 0x3f);
  if (code < 0x800) return [0xc0 | (code >> 6), last];
  const middle = 0x80 | ((code >> 6) & 0x3f);
  if (code < 0x1_0000) return [0xe0 | (code >> 12), middle, last];
  return [0xf0 | (code >> 18), 0x80 | ((code >> 12) & 0x3f), middle, last];
}
