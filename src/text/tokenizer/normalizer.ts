// Normalizes text as tokenizer.json says, with the library's steps. Some steps take many times the memory of their
// text, so long texts are normalized in parts, cut where the step does not look across the cut.
import { SequenceNormalizer } from "@huggingface/tokenizers";
import { withOrderedMarks } from "./combining-marks.ts";
import { OLDER_CHARACTERS } from "./newer-characters.ts";
import type { NormalizerJson } from "./tokenizer-json.ts";

/** Normalizes a text and yields every few milliseconds. `first`: whether the text starts the input. */
export type Normalizer = (text: string, first: boolean) => Generator<void, string>;

/** Characters per part: a few milliseconds of work. */
const PART_CHARS = 2 ** 15;

/** Normalizers that look only at a character, its combining marks and, for sigma, the adjacent letters. */
const LOCAL_STEPS: ReadonlySet<string> = new Set([
  "NFC",
  "NFD",
  "NFKC",
  "NFKD",
  "Lowercase",
  "StripAccents",
  "BertNormalizer",
  "Precompiled",
]);

// Matches a character that LOCAL_STEPS do not look across, and that never combines with the one before.
// Excluded: combining marks, Hangul jamo, sigma, and characters that Unicode ignores around letters.
const PLAIN =
  "(?![Σσς])[\\p{Lu}\\p{Ll}\\p{Nd} \\t\\r\\n!-&(-\\-/;-@\\[-\\]_{-~\\u3041-\\u3096\\u30A1-\\u30FA" +
  "\\u4E00-\\u9FFF\\uAC00-\\uD7A3\\u{1F300}-\\u{1F3FA}\\u{1F400}-\\u{1FAFF}]";
const BETWEEN_PLAIN = new RegExp(`(?<=${PLAIN})(?=${PLAIN})`, "gu");

/** Returns the first offset at or after `from` where the text may be cut. */
type Cut = (text: string, from: number) => number;

const anywhere: Cut = (_, from) => from;
const betweenPlain: Cut = (text, from) => {
  // Inside a surrogate pair, the regex would start its search before the pair.
  const isWithin = (text.charCodeAt(from) & 0xfc00) === 0xdc00;
  BETWEEN_PLAIN.lastIndex = isWithin ? from + 1 : from;
  return BETWEEN_PLAIN.exec(text)?.index ?? text.length;
};
const nowhere: Cut = (text) => text.length;

export function normalizer(
  config: NormalizerJson | null | undefined,
  partChars = PART_CHARS,
): Normalizer {
  const steps = config ? stepsOf(config).map((step) => normalizerStep(step, partChars)) : [];
  return function* (text, first) {
    let normalized = text;
    for (const step of steps) normalized = yield* step(normalized, first);
    return normalized;
  };
}

function stepsOf(config: NormalizerJson): NormalizerJson[] {
  if (config.type !== "Sequence") return [config];
  return (config.normalizers as NormalizerJson[]).flatMap(stepsOf);
}

function normalizerStep(config: NormalizerJson, partChars: number): Normalizer {
  // The library's type lists the known normalizers. A name outside that list is rejected by the library at run time.
  type Listed = ConstructorParameters<typeof SequenceNormalizer>[0]["normalizers"][number];
  const library = new SequenceNormalizer({ type: "Sequence", normalizers: [config as Listed] });
  const isLocal = LOCAL_STEPS.has(config.type);
  const cut = isLocal ? betweenPlain : replacesOneCharacter(config) ? anywhere : nowhere;
  const normalize = (text: string) =>
    isLocal
      ? text.replace(OLDER_CHARACTERS, (older) => library.normalize(withOrderedMarks(older)))
      : library.normalize(text);
  return function* (text) {
    if (text.length <= partChars) return normalize(text);
    const parts: string[] = [];
    for (let start = 0; start < text.length; ) {
      const from = start + partChars;
      const end = from < text.length ? cut(text, from) : text.length;
      parts.push(normalize(text.slice(start, end)));
      start = end;
      yield;
    }
    return parts.join("");
  };
}

function replacesOneCharacter({ type, pattern }: NormalizerJson): boolean {
  const { String: text } = (pattern ?? {}) as Partial<Record<"String", string>>;
  return type === "Replace" && text?.length === 1;
}
