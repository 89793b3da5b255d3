// Opens the tokenizer of a model's folder, whichever format it has.
import { existsSync } from "node:fs";
import { join } from "node:path";
import { readBytes, readJson } from "../../files/json.ts";
import { LoadError } from "../../files/load-error.ts";
import { type Tokenizer, tokenizerFromJson } from "../tokenizer/tokenizer.ts";
import type { TokenizerConfigJson, TokenizerJson } from "../tokenizer/tokenizer-json.ts";
import { RWKV_FILE, tokenizerFromRwkv } from "./rwkv-tokenizer.ts";
import { tokenizerFromSentencePiece } from "./sentence-piece.ts";
import { tokenizerFromTekken } from "./tekken.ts";
import { isTiktoken, tiktokenFiles, tokenizerFromTiktoken } from "./tiktoken.ts";

type Opener = { file: string; open(path: string, config: TokenizerConfigJson): Tokenizer };

/** Tokenizer files and how to open them; the first that exists in the folder is used. */
const openers: readonly Opener[] = [
  {
    file: "tokenizer.json",
    open: (path, config) => tokenizerFromJson(readJson(path) as unknown as TokenizerJson, config),
  },
  ...tiktokenFiles.map((file) => ({
    file,
    open: (path: string, config: TokenizerConfigJson) => {
      const bytes = readBytes(path);
      // Most files named tokenizer.model are SentencePiece's.
      return file === "tokenizer.model" && !isTiktoken(bytes)
        ? tokenizerFromSentencePiece(bytes, config)
        : tokenizerFromTiktoken(file, bytes, config);
    },
  })),
  { file: RWKV_FILE, open: (path, config) => tokenizerFromRwkv(readBytes(path), config) },
  { file: "tekken.json", open: (path, config) => tokenizerFromTekken(readJson(path), config) },
];

const tokenizerFiles: readonly string[] = openers.map(({ file }) => file);

export function folderTokenizer(folder: string, config: TokenizerConfigJson): Tokenizer {
  const found = openers.find(({ file }) => existsSync(join(folder, file)));
  if (!found) {
    throw new LoadError(`${folder}: expected a tokenizer in one of ${tokenizerFiles.join(", ")}`);
  }
  const path = join(folder, found.file);
  try {
    return found.open(path, config);
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    throw new LoadError(message.includes(found.file) ? message : `${path}: ${message}`);
  }
}
