import { expect, test } from "bun:test";
import { array, evaluate, type MlxArray } from "../../../src/mlx/array.ts";
import { matmul } from "../../../src/mlx/ops.ts";
import { key, normal } from "../../../src/mlx/random.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import { scorePrompt } from "../../../src/model/run/logprobs.ts";
import { deviceOf } from "../../support/devices.ts";
import { useMlx } from "../../support/mlx.ts";

useMlx();

test("a long prompt with a large vocabulary is scored in pieces of bounded size", () => {
  using _ = new Scope();
  const [tokens, dims, vocabulary] = [300, 4, 100_000];
  const hidden = normal(key(1), [tokens, dims]);
  const head = normal(key(2), [dims, vocabulary]);
  evaluate(hidden, head);
  const next = Uint32Array.from({ length: tokens }, (_, i) => (i * 331) % vocabulary);
  const pieces: MlxArray["shape"][] = [];
  const logits = (rows: MlxArray) => {
    const made = matmul(rows, head);
    pieces.push(made.shape);
    return made;
  };
  const device = deviceOf("cpu");
  const model = { logits, shape: { vocabulary } };
  const scores = scorePrompt(device, model, hidden, { at: 0, next, top: 3 });
  expect(pieces.reduce((sum, [rows]) => sum + rows!, 0)).toBe(tokens);
  for (const [rows, columns] of pieces) {
    expect(rows! * columns! * 4).toBeLessThanOrEqual(2 ** 24);
  }
  // Where one piece ends and the next begins nothing is lost.
  const edge = pieces[0]![0]!;
  for (const at of [0, edge - 1, edge, tokens - 1]) {
    const row = matmul(array([...rowOf(hidden, at)], [1, dims]), head).numbers();
    const most = row.reduce((a, b) => Math.max(a, b));
    const total = most + Math.log(row.reduce((sum, x) => sum + Math.exp(x - most), 0));
    expect(scores[at]!.logprob).toBeCloseTo(row[next[at]!]! - total, 3);
    expect(scores[at]!.top[0]!.logprob).toBeCloseTo(most - total, 3);
    expect(scores[at]!.top).toHaveLength(3);
  }
});

function rowOf(x: MlxArray, at: number): number[] {
  const columns = x.shape[1]!;
  return x.numbers().slice(at * columns, (at + 1) * columns);
}
