import { describe, expect, test } from "bun:test";
import { huggingFaceName, rowOrder } from "../../../../src/model/checkpoint/gguf/names.ts";
import { blockNames as blocks } from "../../../support/gguf-file.ts";

describe("huggingFaceName", () => {
  test.each(Object.keys(blocks))("knows every tensor of a block of %s", (modelType) => {
    const found = Object.keys(blocks[modelType]!).map((part) =>
      huggingFaceName(`blk.17.${part}.weight`, modelType),
    );
    const expected = Object.values(blocks[modelType]!);
    expect(found).toEqual(expected.map((name) => `model.layers.17.${name}.weight`));
  });

  test("knows the tensors outside of the blocks, and biases", () => {
    const named = (name: string) => huggingFaceName(name, "qwen2");
    expect(named("token_embd.weight")).toBe("model.embed_tokens.weight");
    expect(named("output_norm.weight")).toBe("model.norm.weight");
    expect(named("output.weight")).toBe("lm_head.weight");
    expect(named("blk.0.attn_k.bias")).toBe("model.layers.0.self_attn.k_proj.bias");
  });

  test("drops what follows from the configuration, or has become part of it", () => {
    const dropped = "rope_freqs rope_factors_long rope_factors_short blk.3.attn_rot_embd".split(
      " ",
    );
    for (const name of dropped) expect(huggingFaceName(`${name}.weight`, "llama")).toBeUndefined();
  });

  test("leaves a name that it does not know, so that nothing is lost in silence", () => {
    const names = ["blk.0.attn_sinks.weight", "blk.0.attn_q.scale", "v.blk.0.attn_q.weight"];
    const odd = ["constructor.weight", "blk.0.constructor.weight", "toString", "a\nb"];
    for (const name of [...names, ...odd]) expect(huggingFaceName(name, "llama")).toBe(name);
    expect(huggingFaceName("blk.0.post_ffw_norm.weight", "llama")).toBe(
      "blk.0.post_ffw_norm.weight",
    );
  });
});

describe("rowOrder", () => {
  const config = {
    model_type: "llama",
    num_hidden_layers: 10,
    num_nextn_predict_layers: 0,
    num_attention_heads: 3,
    num_key_value_heads: 2,
  };

  /** As llama.cpp's converter writes them: (heads, 2, D / 2) becomes (heads, D / 2, 2). */
  function converted(rows: number, heads: number): number[] {
    const half = rows / heads / 2;
    const written: number[] = [];
    for (let head = 0; head < heads; head++)
      for (let pair = 0; pair < half; pair++)
        for (let side = 0; side < 2; side++) written.push((head * 2 + side) * half + pair);
    return written;
  }

  test.each([
    ["blk.0.attn_q.weight", [24, 5], 3],
    ["blk.0.attn_k.weight", [16, 5], 2],
    ["blk.9.attn_q.bias", [24], 3],
    ["blk.9.attn_k.bias", [16], 2],
  ])("undoes the converter's order of %s", (name, shape, heads) => {
    const order = rowOrder(name, shape, config)!;
    const written = converted(shape[0]!, heads);
    expect(written.map((_, row) => order(row))).toEqual(written);
  });

  test("is there for the architectures whose converter is llama's, and no others", () => {
    const has = (modelType: string) =>
      rowOrder("blk.0.attn_q.weight", [24, 5], { ...config, model_type: modelType }) !== undefined;
    expect(Object.keys(blocks).filter(has)).toEqual(["llama", "granite", "smollm3"]);
    for (const part of ["attn_v", "attn_output", "attn_q_norm", "ffn_up", "attn_qkv"]) {
      expect(rowOrder(`blk.0.${part}.weight`, [24, 5], config)).toBeUndefined();
    }
  });
});
