import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { defaultModelPath } from "../../ffi/native.ts";
import { blockOf, type GgufType, openTensorData, readGguf } from "../../src/files/gguf.ts";
import { type CodebookName, codebook } from "../../src/files/gguf-codebooks.ts";
import { dequantize } from "../../src/files/gguf-quants.ts";
import {
  mlxLayoutOf,
  type Repacked,
  type RepackedType,
  repack,
} from "../../src/files/gguf-repack.ts";
import { LoadError } from "../../src/files/load-error.ts";

const goldens = join(import.meta.dir, "../golden/gguf");
const golden: Partial<Record<GgufType, { blocks: string; sha256: string }>> = await Bun.file(
  join(goldens, "blocks.json"),
).json();
const types = Object.keys(golden) as GgufType[];

function blocks(type: GgufType): Uint8Array {
  return Uint8Array.fromBase64(golden[type]!.blocks);
}

function decoded(type: GgufType, source: Uint8Array): Float32Array<ArrayBuffer> {
  const { items, bytes } = blockOf(type);
  const target = new Float32Array((source.length / bytes) * items);
  dequantize(type, source, target);
  return target;
}

function bitsOf(values: Float32Array): Uint32Array {
  return new Uint32Array(values.buffer);
}

describe("dequantize", () => {
  test("has goldens for every type that it decodes", () => {
    let listed = "";
    try {
      dequantize("Q8_K", new Uint8Array(292), new Float32Array(256));
    } catch (error) {
      [, listed = ""] = /not supported; (.*) are$/.exec((error as Error).message)!;
    }
    expect(types.toSorted()).toEqual(listed.split(", ").toSorted() as GgufType[]);
  });

  test.each(types)("gives the reference's bits for %s", (type) => {
    const hasher = new Bun.CryptoHasher("sha256");
    expect(hasher.update(decoded(type, blocks(type))).digest("hex")).toBe(golden[type]!.sha256);
  });

  test.each(types)("decodes %s from an odd address", (type) => {
    const source = blocks(type);
    const moved = new Uint8Array(source.length + 1);
    moved.set(source, 1);
    expect(bitsOf(decoded(type, moved.subarray(1)))).toEqual(bitsOf(decoded(type, source)));
  });

  test("has the reference's codebooks", async () => {
    const expected = await Bun.file(join(goldens, "codebooks.json")).json();
    const names = Object.keys(expected).filter((name) => name !== "IQ1_M") as CodebookName[];
    expect(expected.IQ1_M).toBe(expected.IQ1_S);
    for (const name of names) {
      const rows = codebook(name) as Int8Array<ArrayBuffer>;
      const digest = new Bun.CryptoHasher("sha256").update(rows).digest("hex");
      expect([name, digest]).toEqual([name, expected[name]]);
    }
  });

  test("writes only its part of a larger array", () => {
    for (const type of types) {
      const whole = new Float32Array(blockOf(type).items + 2).fill(7);
      dequantize(type, blocks(type).subarray(0, blockOf(type).bytes), whole.subarray(1, -1));
      expect([whole[0], whole.at(-1)]).toEqual([7, 7]);
    }
  });

  test("refuses a type that it does not know", () => {
    const decode = () => dequantize("Q8_K", new Uint8Array(292), new Float32Array(256));
    expect(decode).toThrow(LoadError);
    expect(decode).toThrow(/type Q8_K are not supported; F32, /);
  });

  test("refuses a source and a target that do not fit", () => {
    expect(() => dequantize("Q8_0", new Uint8Array(34), new Float32Array(33))).toThrow(RangeError);
    expect(() => dequantize("Q8_0", new Uint8Array(51), new Float32Array(48))).toThrow(RangeError);
  });

  test("decodes tensors of the default model, in parts, to the reference's bits", async () => {
    const { sha256 } = await Bun.file(join(goldens, "smollm2.json")).json();
    const path = defaultModelPath();
    const { tensors } = readGguf(path);
    using file = openTensorData(path);
    const digests: Record<string, string> = {};
    for (const name of Object.keys(sha256)) {
      const { type, offset, bytes } = tensors.get(name)!;
      const hasher = new Bun.CryptoHasher("sha256");
      const part = new Uint8Array(blockOf(type).bytes * 8192);
      for (let at = 0; at < bytes; at += part.length) {
        const source = part.subarray(0, Math.min(part.length, bytes - at));
        file.read(offset + at, source);
        hasher.update(decoded(type, source));
      }
      digests[name] = hasher.digest("hex");
    }
    expect(digests).toEqual(sha256);
  });
});

/** The floats of 4 bits. */
const e2m1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6];

/** Bits i * bits and up of the stream of words, times the group's scale, plus its bias. */
function decodeRepacked(type: RepackedType, { weight, scales, biases }: Repacked): Float32Array {
  const { bits, groupSize } = mlxLayoutOf(type);
  return Float32Array.from({ length: scales.length * groupSize }, (_, i) => {
    const word = weight[Math.floor((i * bits) / 32)]!;
    const quant = (word >>> ((i * bits) % 32)) & (2 ** bits - 1);
    const group = Math.floor(i / groupSize);
    if (biases) return scales[group]! * quant + biases[group]!;
    return e2m1[quant]! * 2 ** (scales[group]! - 127);
  });
}

describe("repack", () => {
  const repacked: RepackedType[] = ["Q4_0", "Q4_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"];

  function roomFor(type: RepackedType, source: Uint8Array): Repacked {
    const { mode, bits, groupSize } = mlxLayoutOf(type);
    const { items, bytes } = blockOf(type);
    const weights = (source.length / bytes) * items;
    const groups = weights / groupSize;
    const isAffine = mode === "affine";
    return {
      weight: new Uint32Array((weights * bits) / 32),
      scales: isAffine ? new Float32Array(groups) : new Uint8Array(groups),
      biases: isAffine ? new Float32Array(groups) : undefined,
    };
  }

  test.each(repacked)("keeps every weight of %s", (type) => {
    const source = blocks(type);
    const made = roomFor(type, source);
    repack(type, source, made);
    // A zero may have lost its sign, so values are compared and not bits.
    const values = Array.from(decodeRepacked(type, made), (value) => value + 0);
    expect(values).toEqual(Array.from(decoded(type, source), (value) => value + 0));
  });

  test("keeps the f16 scales and minima of Q4_1 as they are", () => {
    const source = blocks("Q4_1");
    const groups = source.length / 20;
    const scales = new Float16Array(groups);
    const biases = new Float16Array(groups);
    repack("Q4_1", source, { ...roomFor("Q4_1", source), scales, biases });
    const view = new DataView(source.buffer);
    const halves = (at: number) =>
      Uint16Array.from({ length: groups }, (_, i) => view.getUint16(i * 20 + at, true));
    expect(new Uint16Array(scales.buffer)).toEqual(halves(0));
    expect(new Uint16Array(biases.buffer)).toEqual(halves(2));
  });

  test("refuses targets that do not fit", () => {
    const source = new Uint8Array(34);
    const made = roomFor("Q8_0", source);
    const words = { ...made, weight: new Uint32Array(7) };
    const groups = { ...made, biases: new Float32Array(2) };
    expect(() => repack("Q8_0", source, words)).toThrow(RangeError);
    expect(() => repack("Q8_0", source, groups)).toThrow(RangeError);
    expect(() => repack("Q8_0", source, { ...made, biases: undefined })).toThrow(RangeError);
  });
});
