// Decodes token ids into bytes of text, token by token. The steps of tokenizer.json's decoder are folded into one
// function of the token and whether it is the first, so a stream decodes like the whole text.
import { BYTE_CHARS, compilePattern } from "./pre-tokenizer.ts";
import { type DecoderJson, unsupported } from "./tokenizer-json.ts";

export interface TokenDecoder {
  /** Returns a token's UTF-8 bytes, possibly only part of a character; undefined for an unknown id. */
  bytes(id: number, first: boolean): Uint8Array | undefined;
  isControl(id: number): boolean;
  /** A character to strip from the start of the text, at most `count` times. */
  readonly strip: { readonly char: string; readonly count: number } | undefined;
}

export interface Vocabulary {
  textOf(id: number): string | undefined;
  isControl(id: number): boolean;
  /** Whether a token is an added one, which is stored as plain text, never in GPT-2's byte alphabet. */
  isAdded(id: number): boolean;
}

type Step = (text: string, first: boolean) => string;

interface Plan {
  steps: Step[];
  byteLevel: boolean;
  byteFallback: boolean;
  fused: boolean;
  strip: TokenDecoder["strip"];
}

const utf8 = new TextEncoder();
const byteOfChar = new Map(BYTE_CHARS.map((char, byte) => [char, byte]));

export function tokenDecoder(
  config: DecoderJson | null | undefined,
  vocabulary: Vocabulary,
): TokenDecoder {
  const plan: Plan = {
    steps: [],
    byteLevel: false,
    byteFallback: false,
    fused: false,
    strip: undefined,
  };
  if (config) addSteps(config, plan);
  else plan.steps.push((text, first) => (first ? text : ` ${text}`));

  function decode(id: number, token: string, first: boolean): Uint8Array {
    const text = plan.steps.reduce((piece, step) => step(piece, first), token);
    const byte = plan.byteFallback ? /^<0x([0-9A-Fa-f]{2})>$/.exec(text) : null;
    if (byte) return Uint8Array.of(Number.parseInt(byte[1]!, 16));
    const bytes = plan.byteLevel && !vocabulary.isAdded(id) ? fromByteChars(text) : undefined;
    return bytes ?? utf8.encode(text);
  }

  const later: (Uint8Array | undefined)[] = [];
  return {
    strip: plan.strip,
    isControl: vocabulary.isControl,
    bytes(id, first) {
      if (!first && later[id]) return later[id];
      const token = vocabulary.textOf(id);
      if (token === undefined) return undefined;
      const bytes = decode(id, token, first);
      if (!first) later[id] = bytes;
      return bytes;
    },
  };
}

function addSteps(config: DecoderJson, plan: Plan): void {
  // Steps after Fuse apply to the joined text. Only Strip (of its first characters) works token by token.
  if (plan.fused && config.type !== "Strip") throw unsupported("decoder after Fuse", config);
  switch (config.type) {
    case "Sequence":
      for (const step of config.decoders) addSteps(step, plan);
      break;
    case "ByteLevel":
      plan.byteLevel = true;
      break;
    case "ByteFallback":
      plan.byteFallback = true;
      break;
    case "Fuse":
      plan.fused = true;
      break;
    case "Replace": {
      const pattern = compilePattern(config.pattern);
      plan.steps.push((text) => text.replaceAll(pattern, () => config.content));
      break;
    }
    case "Strip":
      if (config.stop > 0) throw unsupported("decoder with a stop", config);
      if (plan.fused) plan.strip = { char: config.content, count: config.start };
      else plan.steps.push((text) => stripStart(text, config.content, config.start).text);
      break;
    case "Metaspace": {
      const mark = config.replacement ?? "▁";
      const prefixed = config.prepend_scheme !== "never" && config.add_prefix_space !== false;
      plan.steps.push((text, first) => text.replaceAll(mark, first && prefixed ? "" : " "));
      break;
    }
    case "WordPiece": {
      const prefix = config.prefix ?? "##";
      plan.steps.push((text, first) => {
        const continued = text.startsWith(prefix);
        const word = first ? text : continued ? text.slice(prefix.length) : ` ${text}`;
        return config.cleanup ? cleanUp(word) : word;
      });
      break;
    }
    default:
      throw unsupported("decoder", config);
  }
}

/** Removes up to `count` leading `char`s; returns in `left` how many more may be stripped. */
export function stripStart(
  text: string,
  char: string,
  count: number,
): { text: string; left: number } {
  let rest = text;
  let left = count;
  while (left > 0 && rest !== "") {
    if (!rest.startsWith(char)) return { text: rest, left: 0 };
    rest = rest.slice(char.length);
    left--;
  }
  return { text: rest, left };
}

function fromByteChars(text: string): Uint8Array | undefined {
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) {
    const byte = byteOfChar.get(text[i]!);
    if (byte === undefined) return undefined;
    bytes[i] = byte;
  }
  return bytes;
}

const ENGLISH_SPACING: readonly (readonly [string, string])[] = [
  [" .", "."],
  [" ?", "?"],
  [" !", "!"],
  [" ,", ","],
  [" ' ", "'"],
  [" n't", "n't"],
  [" 'm", "'m"],
  [" do not", " don't"],
  [" 's", "'s"],
  [" 've", "'ve"],
  [" 're", "'re"],
];

function cleanUp(text: string): string {
  return ENGLISH_SPACING.reduce((rest, [from, to]) => rest.replaceAll(from, to), text);
}
