// What architecture files leave to what they have in common: keys, defaults, names, and families that are like others.
import { describe, expect, test } from "bun:test";
import { z } from "zod";
import { LoadError } from "../../../src/files/load-error.ts";
import { count, parseConfig } from "../../../src/model/checkpoint/config.ts";
import { family } from "../../../src/model/design/family.ts";
import { commonName } from "../../../src/model/design/names.ts";
import type { Weights } from "../../../src/model/weights/weights.ts";

describe("a configuration", () => {
  const Config = z.looseObject({ hidden_size: count, rms_norm_eps: z.number() });
  const keys = { hidden_size: "n_embd", rms_norm_eps: "norm_eps" };
  const read = (config: object) => parseConfig(Config, config, keys, { rms_norm_eps: 1e-5 });

  test("is read by the keys of its family, which count more than ours", () => {
    expect(read({ n_embd: 8, norm_eps: 0.5 })).toMatchObject({ hidden_size: 8, rms_norm_eps: 0.5 });
    expect(read({ hidden_size: 4, n_embd: 8 }).hidden_size).toBe(8);
    expect(read({ hidden_size: 4 }).hidden_size).toBe(4);
  });

  test("has what its family has where it leaves something out", () => {
    expect(read({ n_embd: 8 }).rms_norm_eps).toBe(1e-5);
    expect(read({ n_embd: 8, norm_eps: undefined }).rms_norm_eps).toBe(1e-5);
    expect(read({ n_embd: 8, rms_norm_eps: 0.25 }).rms_norm_eps).toBe(0.25);
  });

  test.each([
    [{}, "config.json: n_embd: "],
    [{ n_embd: 0 }, "config.json: n_embd: "],
    [{ hidden_size: 0 }, "config.json: hidden_size: "],
  ])("%o is refused by the key that it has", (config, message) => {
    expect(() => read(config)).toThrow(LoadError);
    expect(() => read(config)).toThrow(message);
  });
});

test("a family that is like another says only how it differs", () => {
  const first = family({
    config: { width: count, depth: count },
    defaults: { width: 1, depth: 1 },
    keys: { width: "w" },
    names: { ".a.": ".b." },
    leftOut: /^mask/,
    design: ({ width }) => ({
      config: { hidden_size: width, tie_word_embeddings: true },
      isParallel: true,
      hidden: width,
    }),
  });
  const second = family({
    like: first,
    config: { height: count },
    defaults: { width: 2 },
    names: { ".c.": ".d." },
    design: ({ height }, _, { hidden }) => ({
      config: { vocab_size: height },
      isParallel: false,
      hidden: Number(hidden) * 10,
    }),
  });
  const { config, design, ...rest } = second.family;
  expect(Object.keys(config)).toEqual(["width", "depth", "height"]);
  expect(rest).toEqual({
    defaults: { width: 2, depth: 1 },
    keys: { width: "w" },
    names: { ".a.": ".b.", ".c.": ".d." },
    leftOut: /^mask/,
  });
  expect(design({ width: 3, height: 5 }, {} as Weights)).toEqual({
    config: { hidden_size: 3, tie_word_embeddings: true, vocab_size: 5 },
    isParallel: false,
    hidden: 30,
  });
});

test.each([
  ["h.0.attn.c_attn.weight", "model.layers.0.self_attn.qkv_proj.weight"],
  ["transformer.h.1.mlp.c_proj.bias", "model.layers.1.mlp.down_proj.bias"],
  ["gpt_neox.layers.0.attention.dense.weight", "model.layers.0.self_attn.o_proj.weight"],
  ["backbone.norm_f.weight", "model.norm.weight"],
  ["model.language_model.embed_tokens.weight", "model.embed_tokens.weight"],
  ["language_model.lm_head.weight", "lm_head.weight"],
  ["model.layers.2.block_sparse_moe.experts.0.w1.weight", "model.layers.2.mlp.experts.0.w1.weight"],
  ["model.layers.2.mlp.gate.wg.weight", "model.layers.2.mlp.gate.weight"],
  // Ours, and those of parts with names of their own.
  ["model.layers.0.self_attn.o_proj.weight", "model.layers.0.self_attn.o_proj.weight"],
  ["model.layers.0.mlp.gate.weight", "model.layers.0.mlp.gate.weight"],
  ["model.layers.0.attn.k_proj.weight", "model.layers.0.attn.k_proj.weight"],
  ["model.layers.0.linear_attn.out_proj.weight", "model.layers.0.linear_attn.out_proj.weight"],
  ["model.layers.0.mlp.router.classifier.weight", "model.layers.0.mlp.router.classifier.weight"],
])("%s is %s in common", (name, common) => {
  expect(commonName(name)).toBe(common);
});
