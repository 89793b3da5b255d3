// Which folders are rerankers, and what their prompts are.
import { expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { openTextModel } from "../../src/text/text-model.ts";
import { editJson } from "../support/dialect-model.ts";
import { type RerankerKind, rerankGoldens, writeReranker } from "../support/reranker-model.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const root = temporaryFolder();
let count = 0;

/** Where it is decides what it is called. */
function folderOf(kind: RerankerKind, ...path: string[]): string {
  const folder = join(root, String(count++), ...path);
  writeReranker(folder, kind);
  return folder;
}

const rerankerIn = (folder: string) => openTextModel(folder).reranker;
const { yes, no, template } = rerankGoldens;

function promptOf(folder: string, instruction?: string): string {
  const { prompt, input } = rerankerIn(folder)!;
  return prompt(input("the query", "the document", instruction)).text;
}

test("Qwen3-Reranker is known by the name of its folder or of its repo", () => {
  for (const path of [
    ["Qwen3-Reranker-0.6B"],
    ["qwen3_RERANKER-8b-mlx"],
    ["models--mlx-community--Qwen3-Reranker-0.6B-4bit", "snapshots", "0123"],
  ]) {
    expect(rerankerIn(folderOf("card", ...path))).toMatchObject({
      yes,
      no,
      takesInstruction: true,
    });
  }
  for (const path of [
    ["Qwen3-0.6B"],
    ["Qwen3-Reranker-lab", "Qwen3-8B"],
    ["models--Qwen3-Reranker--Qwen3-8B", "snapshots", "0123"],
  ]) {
    expect(rerankerIn(folderOf("card", ...path))).toBeUndefined();
  }
});

test("its prompt is that of its card, with its instruction or another", () => {
  const folder = folderOf("card", "Qwen3-Reranker-0.6B");
  const prompt = (instruction: string) => `<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: ${instruction}
<Query>: the query
<Document>: the document<|im_end|>
<|im_start|>assistant
<think>

</think>

`;
  const preset = "Given a web search query, retrieve relevant passages that answer the query";
  expect(promptOf(folder)).toBe(prompt(preset));
  expect(promptOf(folder, "Find it")).toBe(prompt("Find it"));
});

test("sentence-transformers' LogitScore names the tokens, and the template has the prompt", () => {
  expect(rerankerIn(folderOf("template_yes_no"))).toMatchObject({ yes, no });
  const one = rerankerIn(folderOf("template_yes"))!;
  expect([one.yes, one.no]).toEqual([yes, undefined]);
  expect(rerankerIn(folderOf("template"))).toMatchObject({ yes, no });
  // A template of its own goes before the prompt that belongs to the name.
  const folder = folderOf("template_yes_no", "Qwen3-Reranker-0.6B");
  expect(promptOf(folder)).toStartWith(
    "<|im_start|>system\nJudge, and answer yes or no.<|im_end|>",
  );
  expect(promptOf(folder, "Find it")).toContain("Find it, and answer");
  const prompts = { prompts: { query: "Look" }, default_prompt_name: "query" };
  writeFileSync(join(folder, "config_sentence_transformers.json"), JSON.stringify(prompts));
  expect(promptOf(folder)).toContain("Look, and answer");
});

test("a template for pairs that asks for other words is no reranker without the module", () => {
  const other = template.replace("yes or no", "1 or 0").replace('"system"', '"task"');
  const change = (json: object) => ({ ...json, chat_template: other });
  const converted = folderOf("template");
  editJson(join(converted, "tokenizer_config.json"), change);
  expect(rerankerIn(converted)).toBeUndefined();
  const named = folderOf("template_yes_no");
  editJson(join(named, "tokenizer_config.json"), change);
  // It has no place for an instruction either.
  expect(rerankerIn(named)).toMatchObject({ yes, no, takesInstruction: false });
});

test("tokens that do not exist are an error that names the file", () => {
  for (const ids of [{}, { true_token_id: 5000 }, { true_token_id: 1, false_token_id: -1 }]) {
    const folder = folderOf("template_yes_no");
    writeFileSync(join(folder, "1_LogitScore", "config.json"), JSON.stringify(ids));
    expect(() => openTextModel(folder)).toThrow("1_LogitScore/config.json");
  }
});

test("an embedding model and a chat model are no rerankers", () => {
  expect(rerankerIn(folderOf("cosine"))).toBeUndefined();
  expect(openTextModel(folderOf("cosine")).embedding).toEqual({ pooling: "last", normalize: true });
});
