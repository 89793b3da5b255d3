// What recurrent layers ask of a device: on a GPU each of these is a launch, and where one token is computed at a
// time launches are most of a layer's time.
import { expect, test } from "bun:test";
import type { Device } from "../../../src/device/device.ts";
import { array } from "../../../src/mlx/array.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import type { Step } from "../../../src/model/contract/model.ts";
import { ContiguousKv, contiguousStep } from "../../support/contiguous-kv.ts";
import { deviceOf } from "../../support/devices.ts";
import { useMlx } from "../../support/mlx.ts";
import { loadTinyModel, tinyCase } from "../../support/tiny-models.ts";

useMlx();

/** What a forward pass asks for, in this order. */
function asked(name: string): string[] {
  const notes: string[] = [];
  const noting =
    <Args extends unknown[], Made>(note: string, call: (...args: Args) => Made) =>
    (...args: Args) => {
      notes.push(note);
      return call(...args);
    };
  const cpu = deviceOf("cpu");
  const device: Device = {
    ...cpu,
    linear: (matrix, options) => {
      const product = cpu.linear(matrix, options);
      return (x, fused = {}) => {
        const parts = Object.entries(fused).filter(([, part]) => part !== undefined);
        const count = notes.push(["product", ...parts.map(([part]) => part)].join(" "));
        const made = product(x, fused);
        // What a device cannot fuse is its own affair.
        notes.length = count;
        return made;
      };
    },
    rmsNorm: noting("norm", cpu.rmsNorm),
    gate: noting("gate", cpu.gate),
  };
  using _ = new Scope();
  const model = loadTinyModel(tinyCase(name), { device });
  const kv = new ContiguousKv();
  const plain = contiguousStep([{ kv, count: 1 }]);
  const convolve = noting("convolve", plain.convolve);
  const step: Step = { ...plain, convolve, scan: noting("scan", plain.scan) };
  notes.length = 0;
  model.forward(array(Int32Array.of(1)), step);
  kv.free();
  model.free();
  return notes;
}

test("a delta net is one product, a convolution, a scan and one product", () => {
  for (const name of ["qwen3_5", "qwen3_next", "qwen3_next-q4"]) {
    const first = asked(name).slice(0, 4).join(", ");
    expect(first).toBe("product norm, convolve, scan, product residual");
  }
});

test("between the products of Mamba 2 are a convolution, a scan, its gate and its norm", () => {
  const layer = ["product norm", "convolve", "scan", "gate", "norm", "product residual"];
  // And the norm of what comes out.
  expect(asked("mamba2")).toEqual([...layer, ...layer, ...layer, "norm"]);
});
