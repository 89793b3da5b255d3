// RWKV's tokenizer: greedy longest match. Its file has one token per line: the id, a Python str or bytes literal, and
// the number of bytes.
import { LoadError } from "../../files/load-error.ts";
import { byteLevelSplits } from "../tokenizer/pre-tokenizer.ts";
import type { TokenModel } from "../tokenizer/token-model.ts";
import { buildTokenizer, type Tokenizer } from "../tokenizer/tokenizer.ts";
import { addedTokensOf, type TokenizerConfigJson } from "../tokenizer/tokenizer-json.ts";
import { Trie } from "../tokenizer/trie.ts";
import { spelled } from "./tiktoken.ts";

export const RWKV_FILE = "rwkv_vocab_v20230424.txt";

const END = "<|rwkv_tokenizer_end_of_text|>";
/** Characters between yields: a few milliseconds of work. */
const PART_CHARS = 4096;

export function tokenizerFromRwkv(bytes: Uint8Array, config: TokenizerConfigJson): Tokenizer {
  const vocab = new Map<string, number>();
  const lines = new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes).split("\n");
  lines.forEach((line, i) => {
    if (line.trim() === "") return;
    const fail = () => new LoadError(`line ${i + 1}: expected an id, a token and its length`);
    const [, id, b, , literal, length] =
      /^(\d{1,8}) (b?)(['"])(.*)\3 (\d{1,8})\r?$/.exec(line) ?? [];
    if (literal === undefined) throw fail();
    const token = b ? unescapedBytes(literal) : Buffer.from(unescapedText(literal));
    if (token.length !== Number(length)) throw fail();
    vocab.set(spelled(token), Number(id));
  });
  const listed = addedTokensOf(config);
  const added = listed.length > 0 ? listed : [{ id: 0, content: END, special: true }];
  return buildTokenizer(
    {
      vocab,
      model: longestMatchModel(vocab),
      added_tokens: added,
      pre_tokenizer: byteLevelSplits([]),
      decoder: { type: "ByteLevel" },
    },
    { eos_token: END, ...config },
  );
}

const ESCAPE = /\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))/g;
const ESCAPED: Readonly<Record<string, string>> = {
  n: "\n",
  r: "\r",
  t: "\t",
  a: "\x07",
  b: "\b",
  f: "\f",
  v: "\v",
  "0": "\0",
};

function unescapedText(literal: string): string {
  return literal.replaceAll(ESCAPE, (_, x, u, wide, char) => {
    const code = x ?? u ?? wide;
    return code ? String.fromCodePoint(Number.parseInt(code, 16)) : (ESCAPED[char] ?? char);
  });
}

/** Decodes the content of a Python bytes literal. */
export function unescapedBytes(literal: string): Uint8Array {
  return Buffer.from(unescapedText(literal), "latin1");
}

/** Encodes by greedy longest match; the vocabulary is in GPT-2's byte alphabet. */
export function longestMatchModel(vocab: ReadonlyMap<string, number>): TokenModel {
  const trie = new Trie();
  /** Token id of each trie node. */
  const idAt: (number | undefined)[] = [];
  let longest = 1;
  for (const [text, id] of vocab) {
    idAt[trie.add(text)] ??= id;
    longest = Math.max(longest, text.length);
  }

  /** Adds the tokens that start before `until`; returns the offset after the last one. */
  function match(text: string, until: number, add: (id: number) => unknown): number {
    let start = 0;
    while (start < until) {
      let node: number | undefined = 0;
      let [end, found]: [number, number | undefined] = [start + 1, undefined];
      for (let at = start; at < text.length; ) {
        node = trie.next(node, text.charCodeAt(at++));
        if (node === undefined) break;
        if (idAt[node] !== undefined) [end, found] = [at, idAt[node]];
      }
      // A byte without a token is skipped; published vocabularies have a token for every byte.
      if (found !== undefined) add(found);
      start = end;
    }
    return start;
  }

  return {
    encode(piece) {
      const ids: number[] = [];
      match(piece, piece.length, (id) => ids.push(id));
      return ids;
    },
    *encodeLong(piece, spell, ids) {
      let rest = "";
      for (let at = 0; at < piece.length; ) {
        const end = at + PART_CHARS;
        const isPair = (piece.charCodeAt(end - 1) & 0xfc00) === 0xd800;
        rest += spell(piece.slice(at, isPair ? end + 1 : end));
        at = isPair ? end + 1 : end;
        // A token that starts after `until` may extend into the next part.
        const until = at < piece.length ? rest.length - longest : rest.length;
        rest = rest.slice(match(rest, until, (id) => ids.push(id)));
        yield;
      }
    },
  };
}
