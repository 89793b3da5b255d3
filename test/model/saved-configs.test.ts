// Configurations as their authors publish them, and as transformers 5 saves them under keys of its own: with both, a
// model computes what transformers computes. scripts/goldens/saved_configs.py writes the golden.
import { describe, expect, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { array } from "../../src/mlx/array.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { loadModel } from "../../src/model/load.ts";
import {
  bytesOf,
  type FileTensor,
  valuesOf,
  writeSafetensors,
} from "../../src/self-test/tiny-weights.ts";
import { ContiguousKv, contiguousStep } from "../support/contiguous-kv.ts";
import { deviceOf } from "../support/devices.ts";
import { useMlx } from "../support/mlx.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

type Case = {
  published: { model_type: string };
  saved: object;
  gains?: Record<string, number>;
  /** Shapes -> names. */
  tensors: Record<string, string>;
  /** [position, its first logits] */
  logits: [number, number[]][];
};

const path = join(import.meta.dir, "../golden/authors/saved-configs.json");
const { prompt, cases }: { prompt: number[]; cases: Record<string, Case> } = JSON.parse(
  readFileSync(path, "utf8"),
);
/** Gemma 4 in float32 and in float64 differs by half of it. */
const TOLERANCE = 5e-4;

const runtime = useMlx();

const folder = temporaryFolder();

describe.each(Object.entries(cases))("%s", (_, tiny) => {
  test.each(["published", "saved"] as const)("as %s", (version) => {
    const logits = promptLogits(tiny[version], tiny);
    for (const [position, expected] of tiny.logits) {
      expect(distance(logits[position]!, expected)).toBeLessThan(TOLERANCE);
    }
  });
});

test("Ling 3's delta nets have heads of linear_head_dim, whatever head_dim is saved", () => {
  const { saved, ...tiny } = cases["bailing_hybrid-v3"]!;
  expect(saved).toMatchObject({ head_dim: 16, linear_head_dim: 16 });
  const [position, expected] = tiny.logits[1]!;
  const logits = promptLogits({ ...saved, head_dim: 8 }, tiny)[position]!;
  expect(distance(logits, expected)).toBeLessThan(TOLERANCE);
});

function tensorsOf({
  published: config,
  gains,
  tensors,
}: Omit<Case, "saved">): Map<string, FileTensor> {
  const named = Object.entries(tensors).flatMap(([sizes, names]) => {
    const shape = sizes === "" ? [] : sizes.split(" ").map(Number);
    return names.split(" ").map((name): [string, FileTensor] => {
      const values = valuesOf({ config, gains }, 1, name, shape);
      return [name, { dtype: "F32", shape, bytes: bytesOf(values) }];
    });
  });
  return new Map(named);
}

/** The first numbers of logits. */
function distance(logits: number[], expected: number[]): number {
  return Math.max(...expected.map((x, i) => Math.abs(x - logits[i]!)));
}

function promptLogits(config: object, tiny: Omit<Case, "saved">): number[][] {
  using _ = new Scope();
  writeFileSync(join(folder, "config.json"), JSON.stringify(config));
  writeSafetensors(join(folder, "model.safetensors"), tensorsOf(tiny));
  const model = loadModel(folder, { device: deviceOf(runtime.backend), dtype: "float32" });
  const kv = new ContiguousKv();
  try {
    const step = contiguousStep([{ kv, count: prompt.length }]);
    const logits = model.logits(model.forward(array(Int32Array.from(prompt)), step));
    const [numbers, columns] = [logits.numbers(), logits.shape[1]!];
    return prompt.map((_, i) => numbers.slice(i * columns, (i + 1) * columns));
  } finally {
    kv.free();
    model.free();
  }
}
