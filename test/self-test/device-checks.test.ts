// The self-test's checks of a device: they pass here, they leave nothing out, and they find what is broken.
import { describe, expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { backend } from "../../ffi/native.ts";
import type { Device } from "../../src/device/device.ts";
import { openDevice } from "../../src/device/open.ts";
import { array, type MlxArray } from "../../src/mlx/array.ts";
import * as fast from "../../src/mlx/fast.ts";
import type { MakeKernel } from "../../src/mlx/kernel.ts";
import * as ops from "../../src/mlx/ops.ts";
import { deviceChecks, outcomeOf } from "../../src/self-test/device-checks.ts";
import { deviceOf } from "../support/devices.ts";
import { useMlx } from "../support/mlx.ts";
import { recordingKernel } from "../support/recording-kernel.ts";

useMlx();

test("all pass on the device at hand", () => {
  const device = deviceOf(backend());
  const outcomes = deviceChecks(device).map(
    (check) => [check.name, outcomeOf(check, device)] as const,
  );
  expect(outcomes.length).toBeGreaterThan(100);
  expect(outcomes.filter(([, { problem }]) => problem !== undefined)).toEqual([]);
  // What compares nothing would prove nothing.
  expect(outcomes.filter(([, { finding }]) => finding === undefined)).toEqual([]);
}, 120_000);

test("no two have the same name", () => {
  const names = deviceChecks(deviceOf(backend())).map(({ name }) => name);
  expect(new Set(names).size).toBe(names.length);
});

test("every operation has one", () => {
  const names = deviceChecks(deviceOf(backend())).map(({ name }) => name);
  // How far a quantized matrix is from what it was made of.
  const within: Record<string, string> = { dequantize: "quantize" };
  for (const name of [...Object.keys(ops), ...Object.keys(fast)]) {
    expect(names).toContain(`operation: ${within[name] ?? name}`);
  }
});

describe.skipIf(backend() !== "cpu")("every kernel is launched", () => {
  const folder = join(import.meta.dir, "../../src/kernels");
  const kernels = readdirSync(folder, { recursive: true, encoding: "utf8" }).filter((name) =>
    name.endsWith(".c"),
  );
  const bodyOf = (name: string) =>
    readFileSync(join(folder, name), "utf8").replace(/^#include .+\n/gm, "");

  /** The kernels that the checks of a device launch, and their files; none of them computes anything. */
  function launched(make: (make: MakeKernel) => Device, isMeant: RegExp) {
    const sources = new Set<string>();
    const names = new Set<string>();
    const device = make(
      recordingKernel(({ name, source }) => {
        sources.add(source);
        names.add(name);
      }),
    );
    for (const check of deviceChecks(device).filter(({ name }) => isMeant.test(name))) {
      // Zeros are no answer to anything, and no experts that exist.
      try {
        outcomeOf(check, device);
      } catch {}
    }
    device.free();
    const files = kernels.filter((name) =>
      sources.values().some((source) => source.includes(bodyOf(name))),
    );
    return { files, names };
  }

  /** On a CPU MLX takes long for products with most types. */
  const quick =
    /^(?!product: (?!bfloat16)|(product|experts), quantized: (?!4 bits in groups of 64, bfloat16))/;

  test("on an NVIDIA GPU", () => {
    const open = (make: MakeKernel) => openDevice("cuda", { architecture: "sm_90" }, make);
    const { files, names } = launched(open, quick);
    expect(files).toEqual(kernels);
    // Of one file, with a sum and without.
    expect([...names]).toEqual(expect.arrayContaining(["mlx_serve_sum_norm", "mlx_serve_norm"]));
  }, 120_000);

  test("on an Apple GPU", () => {
    const ofCudaAlone =
      /product|expert|route|combine|best|chunks|tiles|tokens|norm|vector|gate|lookup/;
    const own = kernels.filter((name) => !ofCudaAlone.test(name));
    const open = (make: MakeKernel) => openDevice("metal", {}, make);
    expect(launched(open, /attention|convolution|scan/).files).toEqual(own);
  }, 120_000);
});

describe("what is broken is found, by its name", () => {
  const device = () => deviceOf(backend());
  const slightly = (x: MlxArray) => ops.multiply(x, 1.001);

  function failing(broken: Device, among: RegExp): string[] {
    return deviceChecks(broken)
      .filter(({ name }) => among.test(name))
      .filter((check) => outcomeOf(check, broken).problem !== undefined)
      .map(({ name }) => name.split(":")[0]!);
  }

  test("a kernel that decodes", () => {
    const broken: Device = {
      ...device(),
      attention: (shape, dtype) => {
        const attention = device().attention(shape, dtype);
        return {
          chunks: attention.chunks,
          decode: (...inputs) => ops.multiply(attention.decode(...inputs), 1.05),
          prepare: (...inputs) => attention.prepare(...inputs),
          attend: (...inputs) => attention.attend(...inputs),
          copy: (...inputs) => attention.copy(...inputs),
          free: () => attention.free(),
        };
      },
    };
    expect(new Set(failing(broken, /^attention.*float32/))).toEqual(new Set(["attention, decode"]));
  }, 120_000);

  test("a kernel that writes no keys", () => {
    const broken: Device = {
      ...device(),
      attention: (shape, dtype) => {
        const attention = device().attention(shape, dtype);
        return Object.assign(attention, {
          decode: (...[qkv, { keys, values }, ...rest]: Parameters<typeof attention.decode>) => {
            const elsewhere = ops.add(keys, 0);
            elsewhere.evaluate();
            const { decode } = Object.getPrototypeOf(attention);
            return decode.call(attention, qkv, { keys: elsewhere, values }, ...rest);
          },
        });
      },
    };
    const decoding = deviceChecks(broken).filter(({ name }) =>
      /^attention, decode: .*float32/.test(name),
    );
    expect(decoding.length).toBeGreaterThan(5);
    for (const check of decoding) {
      expect(outcomeOf(check, broken).problem).toMatch(/^keys: off by NaN/);
    }
  }, 120_000);

  test("a copy that copies nothing", () => {
    const broken: Device = {
      ...device(),
      latentAttention: (shape, dtype) => {
        const attention = device().latentAttention(shape, dtype);
        return Object.assign(attention, { copy: () => array(Int32Array.of(1)) });
      },
    };
    expect(new Set(failing(broken, /^latent.*float32/))).toEqual(
      new Set(["latent attention, copy"]),
    );
  }, 120_000);

  test("an operation", () => {
    const broken = { ...device(), softmax: (x: MlxArray) => slightly(device().softmax(x)) };
    expect(failing(broken, /^(operation|device)/)).toEqual(["device"]);
  }, 120_000);

  test("an answer of another shape, and one that is NaN", () => {
    const broken: Device = { ...device(), logSumExp: (x) => ops.log(ops.multiply(x, Number.NaN)) };
    const check = deviceChecks(broken).find(({ name }) => name === "device: logSumExp")!;
    const wrongShape = "logSumExp: 2590 numbers instead of 37";
    expect(() => outcomeOf(check, broken)).toThrow(wrongShape);
    const numberless: Device = {
      ...device(),
      logSumExp: (x) => ops.multiply(device().logSumExp(x), Number.NaN),
    };
    expect(outcomeOf(check, numberless).problem).toBe(
      "logSumExp: off by NaN, where 0.00001 is allowed",
    );
  });
});
