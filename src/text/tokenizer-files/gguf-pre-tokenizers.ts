// The pre-tokenizers that GGUF's `tokenizer.ggml.pre` names. Each name stands for the pre-tokenizer of a model
// family's original tokenizer.json, from which the patterns are copied.
import {
  CJK_APART,
  CONTRACTION,
  casedWords,
  GPT2_PATTERN,
  HAN_APART,
  LEAD,
  SPACES,
  words,
} from "../tokenizer/split-patterns.ts";

interface Family {
  names: readonly string[];
  /** Patterns to split at, applied in order. Each match becomes a separate piece. */
  patterns: readonly string[];
  ignoreMerges?: true;
  addsBos?: true;
}

// The cased letters, as DeepSeek's first tokenizer lists them. Letters that editors might normalize are escaped.
const CASED_LETTERS =
  "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ" +
  "ἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\\u1F7Dᾀ-ᾴᾶ-ᾼ\\u1FBEῂ-ῄῆ-ῌῐ-\\u1FD3ῖ-\\u1FDBῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\\u2126" +
  "ℨ\\u212A-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃";
const ASCII_PUNCTUATION = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]";
const SENTENCE_MARKS = " ?[^(\\s|.,!?…。，、।۔،)]+";

const FAMILIES: readonly Family[] = [
  {
    names: [
      "gpt-2",
      "phi-2",
      "mpt",
      "olmo",
      "jais",
      "trillion",
      "gigachat",
      "mellum",
      "exaone4",
      "a.x-4.0",
      "granite-docling",
    ],
    patterns: [GPT2_PATTERN],
  },
  {
    names: [
      "smollm",
      "starcoder",
      "refact",
      "command-r",
      "codeshell",
      "exaone",
      "minerva-7b",
      "mellum2",
    ],
    patterns: ["\\p{N}", GPT2_PATTERN],
  },
  {
    names: [
      "llama-bpe",
      "llama3",
      "llama-v3",
      "falcon3",
      "falcon-h1",
      "pixtral",
      "lfm2",
      "midm-2.0",
    ],
    patterns: [words("\\p{N}{1,3}")],
    ignoreMerges: true,
    addsBos: true,
  },
  { names: ["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], patterns: [words("\\p{N}{1,3}")] },
  {
    names: [
      "qwen2",
      "stablelm2",
      "hunyuan",
      "deepseek-r1-qwen",
      "megrez",
      "grok-2",
      "kormo",
      "solar-open",
    ],
    patterns: [words("\\p{N}")],
  },
  {
    names: ["qwen35"],
    patterns: [
      `${CONTRACTION}|${LEAD}[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|${SPACES}`,
    ],
  },
  { names: ["tekken"], patterns: [casedWords("\\p{N}", "")], ignoreMerges: true, addsBos: true },
  {
    names: ["gpt-4o", "llama4", "minimax-m2", "kanana2", "talkie"],
    patterns: [casedWords("\\p{N}{1,3}", `${CONTRACTION}?`)],
  },
  {
    names: ["deepseek-llm"],
    patterns: [
      "[\\r\\n]",
      `\\s?[${CASED_LETTERS}]+`,
      "\\s?[!-/:-~！-／：-～‘-‟　-。]+",
      "\\s+$",
      "[一-龥ࠀ-一가-퟿]+",
      "\\p{N}+",
    ],
  },
  {
    names: ["deepseek-coder"],
    patterns: ["[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[一-龥ࠀ-一가-퟿]+", "\\p{N}"],
  },
  {
    names: ["deepseek-v3", "hunyuan-dense", "joyai-llm"],
    patterns: [
      "\\p{N}{1,3}",
      "[一-龥぀-ゟ゠-ヿ]+",
      `${ASCII_PUNCTUATION}[A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+` +
        `| ?[\\p{P}\\p{S}]+[\\r\\n]*|${SPACES}`,
    ],
  },
  { names: ["kimi-k2"], patterns: [HAN_APART] },
  { names: ["minicpm5"], patterns: ["\\p{N}{1,3}", words("\\p{N}+")], ignoreMerges: true },
  { names: ["laguna"], patterns: ["[^\\n]+|[\\n]+", words("\\p{N}")] },
  {
    names: ["youtu"],
    patterns: [CJK_APART, casedWords("\\p{N}", `${CONTRACTION}?`)],
    ignoreMerges: true,
  },
  {
    names: ["bailingmoe", "bailingmoe2", "llada-moe"],
    patterns: [
      `${CONTRACTION}|${LEAD}\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+`,
    ],
  },
  {
    names: ["seed-coder"],
    patterns: [`${CONTRACTION}|${LEAD}\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|${SPACES}`],
  },
  {
    names: ["exaone-moe"],
    patterns: [
      `${CONTRACTION}|${LEAD}(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}` +
        "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
    ],
  },
  { names: ["falcon"], patterns: ["[\\p{P}$+<=>^~|`]+", GPT2_PATTERN, "[0-9][0-9][0-9]"] },
  { names: ["bloom", "poro-chat", "gpt3-finnish"], patterns: [SENTENCE_MARKS] },
  { names: ["viking"], patterns: [SENTENCE_MARKS, "\\p{N}"] },
  {
    names: ["default"],
    patterns: ["[\\p{P}$+<=>^~|]+", GPT2_PATTERN, "\\p{N}+", "[0-9][0-9][0-9]"],
  },
];

/** Returns a pre-tokenizer by name. Throws if it is unknown: a wrong split would silently give wrong ids. */
export function ggufPreTokenizer(name: string): Family {
  const family = FAMILIES.find(({ names }) => names.includes(name));
  if (!family) throw new Error(`GGUF: the pre-tokenizer "${name}" is not supported`);
  return family;
}
