// Characters whose normal forms or combining classes are newer than Unicode 9. Hugging Face tokenizers leave them
// unchanged, because they use Unicode 9. Ranges may include characters that no version of Unicode changes.
const ranges = `
  7FD 897-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1AEB 1DF6-1DFA 32FF A7F1-A7F4 A82C AB69 105C9-105E4
  10781-107BA 10D24-10D27 10D69-10D6D 10EAB-10EAC 10EFA-10EFF 10F46-10F85 11070 1133B 11382-113D0
  1145E 11839-1183A 11935-11943 119E0 11A34-11A47 11A99 11D42-11D45 11D97 11F41-11F42 1611E-1612F
  16D63-16D6A 16FF0-16FF1 1CCD6-1CCF9 1E030-1E08F 1E130-1E136 1E2AE-1E2EF 1E4EC-1E4EF 1E5EE-1E5EF
  1E6E3-1E6F5 1F16C 1FBF0-1FBF9`;

const escaped = ranges.trim().replace(/\w+/g, "\\u{$&}").replace(/\s+/g, "");

/** Matches runs of the characters that are outside `ranges`. */
export const OLDER_CHARACTERS = new RegExp(`[^${escaped}]+`, "gu");
