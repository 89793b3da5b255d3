// Normalizes text as tokenizer.json says, with the library's steps. A long text is normalized in parts, cut
// where the step does not look across: as a whole, some steps would take many times the text's memory.
import { SequenceNormalizer } from "@huggingface/tokenizers";
import { withOrderedMarks } from "./combining-marks.ts";
import { OLDER_CHARACTERS } from "./newer-characters.ts";
import type { NormalizerJson } from "./tokenizer-json.ts";

/** Yields every few milliseconds; returns the normalized text. `first`: it starts the input. */
export type Normalizer = (text: string, first: boolean) => Generator<void, string>;

/** Characters of a part: some milliseconds' work. */
const PART_CHARS = 2 ** 15;

/** Steps that look at a character, the marks that it composes with, and, for sigma, the letters beside it. */
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

// Characters that no such step joins with the one before, and that end what it looks at: all but marks, parts
// of syllables, sigma, and what Unicode ignores around letters.
const PLAIN =
  "(?![Σσς])[\\p{Lu}\\p{Ll}\\p{Nd} \\t\\r\\n!-&(-\\-/;-@\\[-\\]_{-~\\u3041-\\u3096\\u30A1-\\u30FA" +
  "\\u4E00-\\u9FFF\\uAC00-\\uD7A3\\u{1F300}-\\u{1F3FA}\\u{1F400}-\\u{1FAFF}]";
const BETWEEN_PLAIN = new RegExp(`(?<=${PLAIN})(?=${PLAIN})`, "gu");

/** Where the text may be cut, from an offset on. */
type Cut = (text: string, from: number) => number;

const anywhere: Cut = (_, from) => from;
const betweenPlain: Cut = (text, from) => {
  // From within a character, the search would start before it.
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
  // The library's types list the normalizers by name; it rejects unknown names.
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
