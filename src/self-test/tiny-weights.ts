// Generates the weights of tiny models from hashes of tensor names, and writes them to a file. The goldens of
// test/golden/models were computed with the same weights (scripts/goldens/models.py).
import { writeFileSync } from "node:fs";

/** One tensor of a safetensors file. */
export type FileTensor = {
  dtype: "F32" | "BF16" | "U32" | "U8";
  shape: number[];
  bytes: Uint8Array;
};

export function writeSafetensors(path: string, tensors: ReadonlyMap<string, FileTensor>): void {
  let end = 0;
  const header: Record<string, unknown> = {};
  for (const [name, { dtype, shape, bytes }] of tensors) {
    header[name] = { dtype, shape, data_offsets: [end, end + bytes.length] };
    end += bytes.length;
  }
  const text = Buffer.from(JSON.stringify(header));
  const length = Buffer.from(BigUint64Array.of(BigInt(text.length)).buffer);
  const data = [...tensors.values()].map(({ bytes }) => bytes);
  writeFileSync(path, Buffer.concat([length, text, ...data]));
}

export type TinyWeights = {
  config: { model_type: string };
  /** Factors for tensors whose names contain the key. */
  gains?: Record<string, number> | undefined;
  /** Means of tensors whose names contain the key; by default 1 for norms, 0 for others. */
  centers?: Record<string, number> | undefined;
};

/** Models whose files store a norm's weight minus 1. */
const normsFromOne = ["gemma", "gemma2", "gemma3", "gemma3_text", "nemotron", "plamo3"];

/** Matches the names of embeddings. */
const embeddings =
  /embed_tokens|wte\.|wpe\.|embed_in\.|tok_embeddings\.|token_embeddings\.|model\.embed\.|model\.embedding\./;

export function valuesOf(
  tiny: TinyWeights,
  seed: number,
  name: string,
  shape: number[],
): Float32Array {
  let gain = 1;
  for (const [part, factor] of Object.entries(tiny.gains ?? {})) {
    if (name.includes(part)) gain *= factor;
  }
  let [center, reach] = [0, 0.3];
  if (name.endsWith(".weight") && shape.length > 1) {
    reach = embeddings.test(name) ? 0.5 : Math.sqrt(3 / shape.at(-1)!) * 1.5;
  } else if (name.endsWith(".weight") && !normsFromOne.includes(tiny.config.model_type)) {
    center = 1;
  } else if (name.endsWith(".sinks")) {
    reach = 2;
  }
  const own = Object.entries(tiny.centers ?? {}).find(([part]) => name.includes(part));
  center = Math.fround(own?.[1] ?? center);
  const factor = Math.fround(reach * gain);
  const count = shape.reduce((a, b) => a * b, 1);
  const values = uniform(`${seed}/${name}`, count);
  for (let i = 0; i < count; i++) values[i] = Math.fround(values[i]! * factor) + center;
  return values;
}

/** Returns numbers in [-1, 1), multiples of 2^-23: hashes of their indices, seeded by the key. */
export function uniform(key: string, count: number): Float32Array {
  const start = fnv1a(key);
  const made = new Float32Array(count);
  for (let i = 0; i < count; i++) {
    let x = (Math.imul(i, 0x9e37_79b1) + start) | 0;
    x = Math.imul(x ^ (x >>> 16), 0x85eb_ca6b);
    x = Math.imul(x ^ (x >>> 13), 0xc2b2_ae35);
    x ^= x >>> 16;
    made[i] = (x >>> 8) / 2 ** 23 - 1;
  }
  return made;
}

function fnv1a(text: string): number {
  let value = 0x811c_9dc5 | 0;
  for (const byte of Buffer.from(text)) value = Math.imul(value ^ byte, 0x0100_0193);
  return value;
}

export function bytesOf(data: ArrayBufferView): Uint8Array {
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
}

/** Quantizes exactly as MLX does on a CPU, in float32: a scale and a bias per group, packed codes of 4 or 8 bits. */
export function affineQuantized(values: Float32Array, groupSize: number, bits: number) {
  const highest = 2 ** bits - 1;
  const groups = values.length / groupSize;
  const [scales, biases] = [new Float32Array(groups), new Float32Array(groups)];
  const packed = new Uint32Array((values.length * bits) / 32);
  for (let group = 0; group < groups; group++) {
    const own = values.subarray(group * groupSize, (group + 1) * groupSize);
    const [least, most] = [Math.min(...own), Math.max(...own)];
    const isLow = Math.abs(least) > Math.abs(most);
    const size = Math.max(Math.fround(Math.fround(most - least) / highest), Math.fround(1e-7));
    const edge = isLow ? least : most;
    let scale = isLow ? size : -size;
    // Adjusts the scale so that the edge is represented exactly, unless the edge is 0.
    const steps = roundToEven(Math.fround(edge / scale));
    if (steps !== 0) scale = Math.fround(edge / steps);
    const bias = steps === 0 ? 0 : edge;
    scales[group] = scale;
    biases[group] = bias;
    for (const [i, value] of own.entries()) {
      const step = roundToEven(Math.fround(Math.fround(value - bias) / scale));
      const at = (group * groupSize + i) * bits;
      packed[at >>> 5]! |= Math.min(Math.max(step, 0), highest) << (at & 31);
    }
  }
  return { packed, scales, biases };
}

function roundToEven(x: number): number {
  const nearest = Math.round(x);
  return Math.abs(x % 1) === 0.5 && nearest % 2 !== 0 ? nearest - 1 : nearest;
}
