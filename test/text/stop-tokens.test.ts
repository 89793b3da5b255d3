import { describe, expect, test } from "bun:test";
import { stopTokens } from "../../src/text/stop-tokens.ts";
import { tokenizerFromJson } from "../../src/text/tokenizer/tokenizer.ts";

function tokenizer(control: string[], eos?: string) {
  const vocab = { a: 0, "<|eot_id|>": 1 };
  const added_tokens = control.map((content, i) => ({ id: 10 + i, content, special: true }));
  const model = { type: "BPE", vocab, merges: [] } as const;
  return tokenizerFromJson({ model, added_tokens }, eos === undefined ? {} : { eos_token: eos });
}

const chatml = tokenizer(["<s>", "</s>", "<|im_end|>", "<|end|>"], "</s>");
const sorted = (ids: Set<number>) => [...ids].sort((a, b) => a - b);

describe("the tokens that end a generation", () => {
  test("are those of every file that names some", () => {
    const generationConfig = { eos_token_id: [1, 13] };
    const ids = stopTokens({ tokenizer: chatml, config: { eos_token_id: 0 }, generationConfig });
    expect(sorted(ids)).toEqual([0, 1, 11, 13]);
  });

  test("are those of the text part of a model with several", () => {
    const config = { text_config: { eos_token_id: [0, 12] } };
    expect(sorted(stopTokens({ tokenizer: chatml, config }))).toEqual([0, 11, 12]);
  });

  test("come from GGUF's fields, of whatever width", () => {
    const gguf = new Map<string, number | bigint>([
      ["tokenizer.ggml.eos_token_id", 0],
      ["tokenizer.ggml.eot_token_id", 12n],
      ["tokenizer.ggml.eom_token_id", 13],
      ["tokenizer.ggml.bos_token_id", 10],
    ]);
    expect(sorted(stopTokens({ tokenizer: chatml, gguf }))).toEqual([0, 11, 12, 13]);
  });

  test("have the template's end of turn, where it is a control token", () => {
    const chatTemplate = "{{ m.content }}<|im_end|> <|eot_id|>";
    expect(sorted(stopTokens({ tokenizer: chatml, chatTemplate }))).toEqual([11, 12]);
  });

  test("have the ends of turns of families that name them otherwise", () => {
    for (const end of ["[|endofturn|]", "<|assistant_end|>", "<|role_end|>", "<seed:eos>"]) {
      const chatTemplate = `{{ m.content }}${end}`;
      expect(sorted(stopTokens({ tokenizer: tokenizer(["<s>", end]), chatTemplate }))).toEqual([
        11,
      ]);
    }
  });

  test("have no mark that only parts the thoughts from the answer", () => {
    const harmony = tokenizer(["<|end|>", "<|return|>", "<|call|>"], "<|return|>");
    const chatTemplate = "<|end|> <|return|> <|call|>";
    expect(sorted(stopTokens({ tokenizer: harmony, chatTemplate }))).toEqual([11, 12]);
  });

  test("exist in the vocabulary, whatever a file says", () => {
    const config = { eos_token_id: [999, -1, 0] };
    expect(sorted(stopTokens({ tokenizer: tokenizer([]), config }))).toEqual([0]);
    expect(stopTokens({ tokenizer: tokenizer([]), config: { eos_token_id: null } }).size).toBe(0);
  });
});
