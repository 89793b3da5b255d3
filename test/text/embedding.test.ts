// How a folder of sentence-transformers says that its vectors are pooled.
import { expect, test } from "bun:test";
import { embeddingOf } from "../../src/text/embedding.ts";

const modules = [
  { type: "sentence_transformers.models.Transformer", path: "" },
  { type: "sentence_transformers.models.Pooling", path: "1_Pooling" },
];

const pooled = (config: object) =>
  embeddingOf((file) => {
    if (file === "modules.json") return JSON.stringify(modules);
    return file === "1_Pooling/config.json" ? JSON.stringify(config) : undefined;
  });

test.each([
  ["last", { pooling_mode_lasttoken: true, pooling_mode_mean_tokens: false }],
  ["mean", { pooling_mode_lasttoken: false, pooling_mode_mean_tokens: true }],
  ["last", { pooling_mode: "lasttoken" }],
  ["mean", { pooling_mode: "mean" }],
] as const)("%s: %j", (pooling, config) => {
  expect(pooled(config)).toEqual({ pooling, normalize: false });
});

test.each([{ pooling_mode: "cls" }, { pooling_mode_cls_token: true }, { pooling_mode: 1 }, {}])(
  "%j is refused",
  (config) => {
    expect(() => pooled(config)).toThrow(/1_Pooling.config\.json/);
  },
);
