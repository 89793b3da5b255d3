// The tiny model of test/golden/rerank, as a folder of each kind that says how texts are scored.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type FileTensor, valuesOf, writeSafetensors } from "../../src/self-test/tiny-weights.ts";

type Scored = { scores: number[]; tokens: number };
type Cases = { preset: Scored; instructed: Scored };

type RerankGoldens = {
  config: Record<string, unknown> & { model_type: string };
  seed: number;
  tensors: Record<string, number[]>;
  tokenizer: object;
  template: string;
  yes: number;
  no: number;
  query: string;
  documents: string[];
  instruction: string;
  card: Cases;
  template_yes_no: Cases;
  template_yes: Cases;
  cosine: number[];
  cosine_tokens: number;
  /** Of the documents and the documents backwards. */
  cosine_in_turn: number[];
};

const file = join(import.meta.dir, "../golden/rerank/goldens.json");
export const rerankGoldens: RerankGoldens = JSON.parse(readFileSync(file, "utf8"));

/** `card`: nothing but its name. `template`: what converters leave of the others. */
export type RerankerKind = "card" | "template" | "template_yes_no" | "template_yes" | "cosine";

export function writeReranker(folder: string, kind: RerankerKind): void {
  const { config, seed, tensors, tokenizer, template, yes, no } = rerankGoldens;
  mkdirSync(folder, { recursive: true });
  const write = (name: string, value: unknown) =>
    writeFileSync(join(folder, name), JSON.stringify(value));
  write("config.json", config);
  write("tokenizer.json", tokenizer);
  write("tokenizer_config.json", {
    eos_token: "<|im_end|>",
    ...(kind.startsWith("template") && { chat_template: template }),
  });
  const weights = Object.entries(tensors).map(([name, shape]): [string, FileTensor] => {
    const { buffer } = valuesOf({ config }, seed, name, shape);
    return [name, { dtype: "F32", shape, bytes: new Uint8Array(buffer) }];
  });
  writeSafetensors(join(folder, "model.safetensors"), new Map(weights));
  const modules = {
    template_yes_no: { LogitScore: { true_token_id: yes, false_token_id: no } },
    template_yes: { LogitScore: { true_token_id: yes, false_token_id: null } },
    cosine: { Pooling: { pooling_mode_lasttoken: true }, Normalize: {} },
    card: {},
    template: {},
  }[kind];
  const listed = Object.entries({ Transformer: {}, ...modules }).map(([name, config], i) => {
    const path = i === 0 ? "" : `${i}_${name}`;
    if (path) mkdirSync(join(folder, path));
    write(join(path, i === 0 ? "sentence_bert_config.json" : "config.json"), config);
    return { idx: i, name: `${i}`, path, type: `sentence_transformers.modules.${name}` };
  });
  if (listed.length > 1) write("modules.json", listed);
}
