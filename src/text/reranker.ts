// Detects rerankers: causal models whose prompt asks if a document answers a query, and whose logits after the prompt
// are the score. Folders for sentence-transformers have a LogitScore module, which names the scored tokens, and a
// chat template for the roles query and document. Converted folders keep only the template. The first Qwen3-Rerankers
// have neither: they are recognized by name, and their prompt comes from the model card.
import { basename } from "node:path";
import { z } from "zod";
import { LoadError } from "../files/load-error.ts";
import { type PromptBuilder, promptBuilder } from "./prompt.ts";
import { jsonOf, type ReadText, sentenceModules } from "./sentence-modules.ts";
import { type ChatInput, type ChatTemplate, chatTemplate } from "./template/template.ts";
import type { Tokenizer } from "./tokenizer/tokenizer.ts";

export type Reranker = {
  prompt: PromptBuilder;
  /** The score is the logit of `yes`, minus that of `no` if present. */
  yes: number;
  no: number | undefined;
  /** Whether the prompt includes an instruction. */
  takesInstruction: boolean;
  /** Returns the chat for a query-document pair; the default instruction is the model's. */
  input(query: string, document: string, instruction: string | undefined): ChatInput;
};

export type RerankerSources = {
  path: string;
  tokenizer: Tokenizer;
  template: ChatTemplate | undefined;
  text: ReadText;
};

const LogitScore = z.object({ true_token_id: z.int(), false_token_id: z.int().nullish() });

const Prompts = z.object({
  prompts: z.record(z.string(), z.string()),
  default_prompt_name: z.string(),
});

export function rerankerOf({
  path,
  tokenizer,
  template,
  text,
}: RerankerSources): Reranker | undefined {
  const own = template && takesPairs(template.source) ? template : undefined;
  const isQwen3 = /qwen3[-_.]?reranker/i.test(nameOf(path));
  const used = own ?? (isQwen3 ? qwen3Template : undefined);
  if (!used) return undefined;
  const tokens = namedTokens(text, tokenizer) ?? yesAndNo(used.source, tokenizer);
  if (!tokens) return undefined;
  const preset = own ? presetPrompt(text) : QWEN3_INSTRUCTION;
  return {
    prompt: promptBuilder(used, tokenizer),
    ...tokens,
    takesInstruction: /["']system["']/.test(used.source),
    input(query, document, instruction = preset) {
      return {
        messages: [
          ...(instruction === undefined ? [] : [{ role: "system", content: instruction }]),
          { role: "query", content: query },
          { role: "document", content: document },
        ],
        addGenerationPrompt: true,
      };
    },
  };
}

function takesPairs(template: string): boolean {
  return /["']query["']/.test(template) && /["']document["']/.test(template);
}

/** Returns the base name of the path, preceded by the repo's name if the path is in the Hugging Face cache. */
function nameOf(path: string): string {
  const [, repo = ""] = /models--[^/]+?--([^/]+)\/snapshots\//.exec(path) ?? [];
  return `${repo} ${basename(path)}`;
}

type ScoreTokens = Pick<Reranker, "yes" | "no">;

/** Returns the tokens that sentence-transformers' LogitScore module names; undefined without such a module. */
function namedTokens(text: ReadText, tokenizer: Tokenizer): ScoreTokens | undefined {
  const module = sentenceModules(text).config("LogitScore");
  if (!module) return undefined;
  const { data } = LogitScore.safeParse(module.json);
  const ids = data && [data.true_token_id, data.false_token_id ?? data.true_token_id];
  if (!ids?.every((id) => tokenizer.tokenOf(id) !== undefined)) {
    throw new LoadError(`${module.file}: true_token_id and false_token_id must be token ids`);
  }
  return { yes: data!.true_token_id, no: data!.false_token_id ?? undefined };
}

/** Returns the tokens "yes" and "no" if the template asks for "yes or no"; otherwise undefined. */
function yesAndNo(template: string, tokenizer: Tokenizer): ScoreTokens | undefined {
  const [yes, no] = [tokenizer.idOf("yes"), tokenizer.idOf("no")];
  const isAsked = /\byes\W+or\W+no\b/.test(template);
  return isAsked && yes !== undefined && no !== undefined ? { yes, no } : undefined;
}

/** Returns the default system message of sentence-transformers' configuration; undefined if there is none. */
function presetPrompt(text: ReadText): string | undefined {
  const { data } = Prompts.safeParse(jsonOf(text("config_sentence_transformers.json")));
  return data?.prompts[data.default_prompt_name];
}

const QWEN3_INSTRUCTION =
  "Given a web search query, retrieve relevant passages that answer the query";

/** The prompt of Qwen3-Reranker's model card, as a template for sentence-transformers' messages. */
const qwen3Template = chatTemplate({
  jinja: `{% set labels = {"system": "<Instruct>: ", "query": "\\n<Query>: ", "document": "\\n<Document>: "} %}
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
{% for message in messages %}{{ labels[message.role] + message.content }}{% endfor %}<|im_end|>
<|im_start|>assistant
{{ "<think>\\n\\n</think>\\n\\n" }}`,
})!;
