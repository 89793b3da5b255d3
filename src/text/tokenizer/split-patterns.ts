// The split patterns of byte-level tokenizers. Most families use the pattern of cl100k or o200k and differ in how many
// digits they group.

export const GPT2_PATTERN =
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

export const CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
export const LEAD = "[^\\r\\n\\p{L}\\p{N}]?";
export const SPACES = "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const UPPER = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]";
const LOWER = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]";
const SIGNS = " ?[^\\s\\p{L}\\p{N}]+";

/** The cl100k pattern. */
export const words = (digits: string) =>
  `${CONTRACTION}|${LEAD}\\p{L}+|${digits}|${SIGNS}[\\r\\n]*|${SPACES}`;

/** The o200k pattern: splits words where lower case changes to upper. */
export const casedWords = (digits: string, ending: string) =>
  `${cased(UPPER, LOWER, ending)}|${digits}|${SIGNS}[\\r\\n/]*|${SPACES}`;

const cased = (upper: string, lower: string, ending: string) =>
  `${LEAD}${upper}*${lower}+${ending}|${LEAD}${upper}+${lower}*${ending}`;

const HAN = "\\p{Script=Han}";
const notHan = (letters: string) => `(?:(?!${HAN})${letters})`;

/** Kimi's pattern: o200k with runs of Han characters as separate pieces. */
export const HAN_APART =
  `${HAN}+|${cased(notHan(UPPER), notHan(LOWER), `${CONTRACTION}?`)}|\\p{N}{1,3}` +
  `|${SIGNS}[\\r\\n]*|${SPACES}`;

/** Splits scripts without spaces between words, and their punctuation, into separate runs. */
export const CJK_APART = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+";
