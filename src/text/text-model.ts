// What the main thread knows of a model: how text becomes tokens and tokens become text. The weights are
// the Worker's business.
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { readGguf } from "../files/gguf.ts";
import { readJson } from "../files/json.ts";
import { LoadError } from "../files/load-error.ts";
import { ggufChatTemplate, tokenizerFromGguf } from "./gguf-tokenizer.ts";
import { type Prompt, promptBuilder } from "./prompt.ts";
import { stopTokens } from "./stop-tokens.ts";
import { type ChatInput, chatTemplate } from "./template.ts";
import { type Tokenizer, tokenizerFromJson } from "./tokenizer.ts";

export type TextModel = {
  tokenizer: Tokenizer;
  /** Undefined where the model has no chat template. */
  chat: ((input: ChatInput) => Prompt) | undefined;
  /** Tokens that end an answer. */
  stopTokens: ReadonlySet<number>;
};

/** From a folder, or from a GGUF file. */
export function openTextModel(path: string): TextModel {
  return path.endsWith(".gguf") ? fromGguf(path) : fromFolder(path);
}

function fromGguf(path: string): TextModel {
  const { metadata } = readGguf(path);
  const tokenizer = tokenizerFromGguf(metadata);
  const gguf = ggufChatTemplate(metadata);
  const template = chatTemplate({ gguf }, { namedTokens: tokenizer.namedTokens });
  return {
    tokenizer,
    chat: template && promptBuilder(template, tokenizer),
    stopTokens: stopTokens({ tokenizer, gguf: metadata, chatTemplate: template?.source }),
  };
}

function fromFolder(path: string): TextModel {
  const json = (name: string) => {
    const file = join(path, name);
    return existsSync(file) ? readJson(file) : undefined;
  };
  const tokenizerJson = json("tokenizer.json");
  if (!tokenizerJson) throw new LoadError(`${path}: there is no tokenizer.json`);
  const tokenizerConfig = json("tokenizer_config.json") ?? {};
  const tokenizer = tokenizerFromJson(tokenizerJson as never, tokenizerConfig as never);
  const jinjaFile = join(path, "chat_template.jinja");
  const jinja = existsSync(jinjaFile) ? readFileSync(jinjaFile, "utf8") : undefined;
  const { namedTokens } = tokenizer;
  const template = chatTemplate({ config: tokenizerConfig as never, jinja }, { namedTokens });
  return {
    tokenizer,
    chat: template && promptBuilder(template, tokenizer),
    stopTokens: stopTokens({
      tokenizer,
      config: json("config.json"),
      generationConfig: json("generation_config.json"),
      chatTemplate: template?.source,
    }),
  };
}
