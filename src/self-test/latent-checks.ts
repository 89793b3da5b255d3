// Checks a device's latent attention against plain arithmetic.
import type { Device, FloatType } from "../device/device.ts";
import type { LatentAttention, LatentShape } from "../kernels/attention/latent-attention.ts";
import { packPlaces, packTables, packTiles } from "../kernels/attention/paged-attention.ts";
import { BLOCK_TOKENS } from "../kv/blocks.ts";
import { array, evaluate, type MlxArray } from "../mlx/array.ts";
import type { Dtype } from "../mlx/dtype.ts";
import { rmsNorm } from "../mlx/fast.ts";
import { astype } from "../mlx/ops.ts";
import { compared, type DeviceCheck, type Finding, noise, numbersOf } from "./check.ts";
import { PlainLatentAttention } from "./plain-latent-attention.ts";

type Case = LatentShape & { dtype: FloatType; isRotated?: boolean; splits?: number };

const cases: readonly Case[] = [
  { heads: 16, latent: 512, rotary: 64, dtype: "float32" },
  { heads: 9, latent: 40, rotary: 8, dtype: "float32", splits: 4 },
  { heads: 4, latent: 32, rotary: 16, dtype: "float32", isRotated: false },
  { heads: 20, latent: 64, rotary: 16, dtype: "float16", splits: 4 },
  { heads: 16, latent: 512, rotary: 64, dtype: "bfloat16" },
  { heads: 20, latent: 64, rotary: 16, dtype: "bfloat16", splits: 4 },
];

const kinds = ["decode", "prompt", "copy"] as const;
type Kind = (typeof kinds)[number];

export function latentChecks(): DeviceCheck[] {
  return cases.flatMap((each) => {
    const { heads, latent, rotary, dtype, isRotated = true, splits } = each;
    const told = [
      `${heads} heads over ${latent} + ${rotary}`,
      dtype,
      ...(isRotated ? [] : ["not rotated"]),
      ...(splits ? [`splits ${splits}`] : []),
    ];
    return kinds.map((kind) => ({
      name: `latent attention, ${kind}: ${told.join(", ")}`,
      run: (device) => check(kind, each, device),
    }));
  });
}

const BLOCKS = 32;
const WIDTH = 8;
const sequences = [
  { start: 0, added: 7 },
  { start: 45, added: 9 },
  { start: 130, added: 1 },
  { start: 30, added: 3 },
];

const blockOf = (row: number, position: number) =>
  ((row * WIDTH + Math.floor(position / BLOCK_TOKENS)) * 5) % BLOCKS;

const slotOf = (row: number, position: number) =>
  blockOf(row, position) * BLOCK_TOKENS + (position % BLOCK_TOKENS);

function check(kind: Kind, each: Case, device: Device): Finding[] {
  const { dtype } = each;
  const compute = makeCompute(kind, each);
  const expected = compute(new PlainLatentAttention(each), "float32", "float32");
  const attention = device.latentAttention(each, dtype);
  const found = compute(attention, dtype, device.kvType(dtype));
  attention.free();
  const most = { float32: device.backend === "cpu" ? 1e-5 : 2e-4, float16: 4e-3, bfloat16: 3e-2 };
  return (["output", "pool"] as const).map((what) =>
    compared(what, found[what], expected[what], most[dtype]),
  );
}

function makeCompute(kind: Kind, { heads, latent, rotary, dtype, isRotated = true, splits }: Case) {
  const dims = latent + rotary;
  const rows = sequences.map(({ start, added }) => ({
    start,
    count: kind === "decode" ? 1 : added,
  }));
  const tokens = rows.flatMap(({ start, count }, row) =>
    Array.from({ length: count }, (_, i) => {
      return { position: start + i, slot: slotOf(row, start + i), row };
    }),
  );
  /** Makes inputs rounded to the case's type, as float32. */
  const rounded = (key: string, shape: number[]) => {
    const count = shape.reduce((a, b) => a * b);
    return astype(astype(array(noise(key, count), shape), dtype), "float32");
  };
  /** The pool before the check. Slots without a token hold NaN. */
  const before = new Float32Array(BLOCKS * BLOCK_TOKENS * dims).fill(Number.NaN);
  for (const [row, { start }] of rows.entries()) {
    const known = noise(`latents ${row}`, start * dims);
    for (let position = 0; position < start; position++) {
      before.set(
        known.subarray(position * dims, (position + 1) * dims),
        slotOf(row, position) * dims,
      );
    }
  }
  const absorbed = rounded("absorbed", [tokens.length, heads * latent]);
  // Projected rows have the columns of a model's: query features per head, latent vectors, unused columns.
  const spare = 6;
  const [stride, first] = [spare + rotary, heads * (spare + rotary)];
  const projected = rounded("projected", [tokens.length, first + dims + 2]);
  const weight = rounded("norm", [latent]);
  const wavelengths = array(Float32Array.from({ length: rotary / 2 }, (_, i) => 100 ** (i / 8)));
  const rope = isRotated ? { dims: rotary, wavelengths, magnitude: 1.1 } : undefined;
  const blocks = (row: number) =>
    Array.from({ length: WIDTH }, (_, i) => blockOf(row, i * BLOCK_TOKENS));
  const lengths = rows.map(({ start, count }, row) => ({
    length: start + count,
    blocks: blocks(row),
  }));
  const tables = array(packTables(lengths, WIDTH));
  const places = array(packPlaces(tokens));

  return (by: LatentAttention, type: Dtype, kept: Dtype) => {
    const pool = astype(astype(array(before, [BLOCKS, 1, BLOCK_TOKENS, dims]), dtype), kept);
    evaluate(pool);
    const all = astype(projected, type);
    const inputs = {
      absorbed: astype(absorbed, type),
      placed: { rows: all, first: spare, stride },
      latents: { rows: all, first },
    };
    const norm = { weight: astype(weight, type), eps: 0.1 };
    const work = {
      scale: dims ** -0.5,
      rope,
      norm: Object.assign((x: MlxArray) => rmsNorm(x, norm.weight, norm.eps), norm),
    };
    const launch = () => {
      if (kind === "decode") return by.decode(inputs, pool, tables, work, splits);
      if (kind === "copy") {
        evaluate(by.copy(pool, array(Int32Array.of(blockOf(1, 0), blockOf(0, 64)))));
        return array([0]);
      }
      const tiles = by.tile ? array(packTiles(rows, by.tile)) : undefined;
      return by.attend(inputs, pool, tables, places, work, tiles);
    };
    return { output: numbersOf(launch()), pool: numbersOf(pool) };
  };
}
