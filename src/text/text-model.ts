// The part of a model that the main thread needs: tokenizer, chat template and stop tokens. The weights are on the
// Worker.
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { readGgufModel } from "../files/gguf-parts.ts";
import { readJson } from "../files/json.ts";
import { type Embedding, embeddingOf } from "./embedding.ts";
import { type PromptBuilder, promptBuilder } from "./prompt.ts";
import { type Reranker, rerankerOf } from "./reranker.ts";
import { stopTokens } from "./stop-tokens.ts";
import { type SuggestedSampling, suggestedSampling } from "./suggested-sampling.ts";
import { chatTemplate } from "./template/template.ts";
import type { Tokenizer } from "./tokenizer/tokenizer.ts";
import { folderTokenizer } from "./tokenizer-files/folder-tokenizer.ts";
import { ggufChatTemplate, tokenizerFromGguf } from "./tokenizer-files/gguf-tokenizer.ts";

/** The files that a text model is opened from. */
export type TextSource = TextModelOptions & { path: string };

export type TextModel = {
  source: TextSource;
  tokenizer: Tokenizer;
  /** Builds prompts; undefined if the model has no chat template. */
  chat: PromptBuilder | undefined;
  /** Whether the chat template mentions a role. */
  knowsRole(role: string): boolean;
  /** Source of the chat template, or of the tool template if there are two. */
  template: string;
  /** Tokens that end an answer. */
  stopTokens: ReadonlySet<number>;
  /** Sampling defaults from generation_config.json. */
  sampling: SuggestedSampling;
  /** Pooling, if it is an embedding model. */
  embedding: Embedding | undefined;
  /** Scoring of query-document pairs, if it is a reranker. */
  reranker: Reranker | undefined;
};

export type TextModelOptions = {
  /** A Jinja template instead of the model's own. */
  chatTemplate?: string | undefined;
};

/** Opens the text model in a folder or a GGUF file. */
export function openTextModel(path: string, options: TextModelOptions = {}): TextModel {
  return path.endsWith(".gguf") ? fromGguf(path, options) : fromFolder(path, options);
}

function fromGguf(path: string, { chatTemplate: jinja }: TextModelOptions): TextModel {
  const { metadata } = readGgufModel(path);
  const tokenizer = tokenizerFromGguf(metadata);
  const gguf = ggufChatTemplate(metadata);
  const template = chatTemplate({ gguf, jinja }, { namedTokens: tokenizer.namedTokens });
  return {
    source: { path, chatTemplate: jinja },
    tokenizer,
    chat: template && promptBuilder(template, tokenizer),
    knowsRole: (role) => template?.source.includes(role) ?? false,
    template: template?.toolSource ?? "",
    stopTokens: stopTokens({ tokenizer, gguf: metadata, chatTemplate: template?.source }),
    sampling: {},
    embedding: undefined,
    reranker: rerankerOf({ path, tokenizer, template, text: () => undefined }),
  };
}

/** Returns the template in chat_template.json, where the processors of multimodal models keep it. */
function templateIn(json: (name: string) => unknown): string | undefined {
  const { chat_template: found } = (json("chat_template.json") ?? {}) as Record<string, unknown>;
  return typeof found === "string" ? found : undefined;
}

function fromFolder(path: string, options: TextModelOptions): TextModel {
  const json = (name: string) => {
    const file = join(path, name);
    return existsSync(file) ? readJson(file) : undefined;
  };
  const text = (name: string) => {
    const file = join(path, name);
    return existsSync(file) ? readFileSync(file, "utf8") : undefined;
  };
  const tokenizerConfig = json("tokenizer_config.json") ?? {};
  const tokenizer = folderTokenizer(path, tokenizerConfig);
  const jinja = options.chatTemplate ?? text("chat_template.jinja") ?? templateIn(json);
  const generationConfig = json("generation_config.json");
  const { namedTokens } = tokenizer;
  const template = chatTemplate({ config: tokenizerConfig as never, jinja }, { namedTokens });
  return {
    source: { path, ...options },
    tokenizer,
    chat: template && promptBuilder(template, tokenizer),
    knowsRole: (role) => template?.source.includes(role) ?? false,
    template: template?.toolSource ?? "",
    stopTokens: stopTokens({
      tokenizer,
      config: json("config.json"),
      generationConfig,
      chatTemplate: template?.source,
    }),
    sampling: suggestedSampling(generationConfig),
    embedding: embeddingOf(text),
    reranker: rerankerOf({ path, tokenizer, template, text }),
  };
}
