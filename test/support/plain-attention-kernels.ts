// The kernels of attention in plain arithmetic (plain-kernels.ts), over heads and over latents.
import { type Constants, type Inputs, type Numbers, refuseChains } from "./plain-kernel.ts";

const BLOCK = 32;

type Place = { position: number; slot: number; row: number };

export function placesOf(places: Numbers): Place[] {
  return Array.from({ length: places.length / 3 }, (_, i) => {
    return { position: places[3 * i]!, slot: places[3 * i + 1]!, row: places[3 * i + 2]! };
  });
}

/** Of the newest token of each sequence. */
function newestPlaces(tables: Numbers): Place[] {
  const width = tables[0]!;
  return Array.from({ length: (tables.length - 1) / (1 + width) }, (_, row) => {
    const position = tables[1 + row * (1 + width)]! - 1;
    return { position, slot: slotOf(tables, row, position), row };
  });
}

function slotOf(tables: Numbers, row: number, position: number): number {
  const block = tables[2 + row * (1 + tables[0]!) + Math.floor(position / BLOCK)]!;
  return block * BLOCK + (position % BLOCK);
}

// ---- Heads

export function decode(inputs: Inputs, c: Constants, output: Numbers): void {
  const places = newestPlaces(inputs.tables!);
  const queries = new Float32Array(places.length * c.HEADS! * c.D!);
  writeHeads(inputs, c, places, queries);
  attendHeads(inputs, c, queries, places, output);
}

export function writeHeads(
  inputs: Inputs,
  c: Constants,
  places: readonly Place[],
  queries: Numbers,
) {
  const { qkv, layer, keys, values } = inputs as Record<string, Numbers>;
  const [D, heads, kvHeads] = [c.D!, c.HEADS!, c.KV_HEADS!];
  const all = heads + (c.SHARES_KV ? 0 : 2 * kvHeads);
  places.forEach(({ position, slot }, token) => {
    for (let index = 0; index < all; index++) {
      const [isQuery, isValue] = [index < heads, index >= heads + kvHeads];
      const at = (token * all + index) * D;
      const head = Float64Array.from(qkv!.subarray(at, at + D));
      const norm = isQuery ? 0 : isValue ? 2 : 1;
      if (isValue ? c.VALUES_NORMED : c.NORMED) normalize(head, layer!, 4 + norm * D);
      if (!isValue) rotateHalves(head, layer!, 4 + 3 * D, c.ROTARY_DIMS! / 2, position);
      if (isQuery) queries.set(head, (token * heads + index) * D);
      else (isValue ? values! : keys!).set(head, headAt(slot, (index - heads) % kvHeads, c));
    }
  });
}

function normalize(x: Float64Array, layer: Numbers, at: number): void {
  const mean = x.reduce((sum, each) => sum + each * each, 0) / x.length;
  const scale = 1 / Math.sqrt(mean + layer[1]!);
  for (let d = 0; d < x.length; d++) x[d]! *= scale * layer[at + d]!;
}

function rotateHalves(x: Float64Array, layer: Numbers, at: number, half: number, position: number) {
  for (let i = 0; i < half; i++) rotate(x, i, i + half, position / layer[at + i]!, layer[3]!);
}

function rotate(x: Float64Array, i: number, j: number, angle: number, magnitude: number): void {
  const [a, b] = [x[i]! * magnitude, x[j]! * magnitude];
  x[i] = a * Math.cos(angle) - b * Math.sin(angle);
  x[j] = a * Math.sin(angle) + b * Math.cos(angle);
}

/** Where a head of a slot begins in a pool. */
function headAt(slot: number, kv: number, { D, KV_HEADS }: Constants): number {
  return ((Math.floor(slot / BLOCK) * KV_HEADS! + kv) * BLOCK + (slot % BLOCK)) * D!;
}

export function attendHeads(
  inputs: Inputs,
  c: Constants,
  queries: Numbers,
  places: readonly Place[],
  output: Numbers,
): void {
  const { layer, keys, values, tables } = inputs as Record<string, Numbers>;
  const [D, heads, window] = [c.D!, c.HEADS!, c.WINDOW!];
  const sinks = 4 + 3 * D + c.ROTARY_DIMS! / 2;
  places.forEach(({ position, row }, token) => {
    const edge = c.CHUNKED ? position - (position % window) : position + 1 - window;
    const oldest = window === 0 ? 0 : Math.max(0, edge);
    for (let head = 0; head < heads; head++) {
      const kv = Math.floor(head / (heads / c.KV_HEADS!));
      const seen = tokensSeen(oldest, position, (t) => headAt(slotOf(tables!, row, t), kv, c));
      const at = (token * heads + head) * D;
      attend(queries.subarray(at, at + D), keys!, values!, seen, output.subarray(at, at + D), {
        scale: layer![0]!,
        cap: c.CAPPED ? layer![2]! : undefined,
        sink: c.SINKS ? layer![sinks + head]! : undefined,
      });
    }
  });
}

function tokensSeen(oldest: number, newest: number, at: (token: number) => number): number[] {
  return Array.from({ length: newest + 1 - oldest }, (_, i) => at(oldest + i));
}

type Scores = { scale: number; cap?: number | undefined; sink?: number | undefined };

/** One query over the tokens whose keys and values begin at `seen`. */
function attend(
  query: Numbers | Float64Array,
  keys: Numbers,
  values: Numbers,
  seen: readonly number[],
  output: Numbers,
  { scale, cap, sink }: Scores,
): void {
  const scores = Float64Array.from(seen, (at) => {
    let product = 0;
    for (let d = 0; d < query.length; d++) product += query[d]! * keys[at + d]!;
    const score = scale * product;
    return cap === undefined ? score : cap * Math.tanh(score / cap);
  });
  const highest = scores.reduce((a, b) => Math.max(a, b), sink ?? -Infinity);
  let total = sink === undefined ? 0 : Math.exp(sink - highest);
  const sums = new Float64Array(output.length);
  for (let t = 0; t < seen.length; t++) {
    const weight = Math.exp(scores[t]! - highest);
    total += weight;
    for (let d = 0; d < sums.length; d++) sums[d]! += weight * values[seen[t]! + d]!;
  }
  for (let d = 0; d < sums.length; d++) output[d] = sums[d]! / total;
}

/** Blocks of one launch are copied in any order. */
export function copy({ pool, pairs }: Inputs, { D, KV_HEADS }: Constants, output: Numbers): void {
  const size = KV_HEADS! * BLOCK * D!;
  const all = Array.from({ length: pairs!.length / 2 }, (_, i) => {
    return { from: pairs![2 * i]!, to: pairs![2 * i + 1]! };
  });
  refuseChains(all);
  for (const { from, to } of all) pool!.copyWithin(to * size, from * size, (from + 1) * size);
  output.fill(1);
}

// ---- Latents

export function writeLatents(inputs: Inputs, c: Constants, output: Numbers): void {
  const { latents, layer, pool, places } = inputs as Record<string, Numbers>;
  const size = c.LATENT! + c.ROTARY!;
  placesOf(places!).forEach(({ position, slot }, token) => {
    const at = token * c.LATENT_COLUMNS! + c.LATENT_FIRST!;
    const vector = Float64Array.from(latents!.subarray(at, at + size));
    normalize(vector.subarray(0, c.LATENT!), layer!, 4);
    rotatePairs(vector, layer!, c, position);
    pool!.set(vector, slot * size);
  });
  output.set(places!);
}

function rotatePairs(x: Float64Array, layer: Numbers, c: Constants, position: number): void {
  const latent = c.LATENT!;
  for (let d = latent; c.ROTATED && d < x.length; d += 2) {
    rotate(x, d, d + 1, position / layer[4 + 3 * latent + (d - latent) / 2]!, layer[3]!);
  }
}

function decodeLatents(inputs: Inputs, c: Constants, output: Numbers): void {
  const { latents, layer, pool, tables } = inputs as Record<string, Numbers>;
  const size = c.LATENT! + c.ROTARY!;
  const places = newestPlaces(tables!);
  places.forEach(({ position, slot }, token) => {
    const vector = Float64Array.from(latents!.subarray(token * size, (token + 1) * size));
    rotatePairs(vector, layer!, c, position);
    pool!.set(vector, slot * size);
  });
  attendLatents(inputs, c, places, output);
}

export function attendLatents(
  inputs: Inputs,
  c: Constants,
  places: readonly Place[],
  output: Numbers,
) {
  const { queries, layer, pool, tables } = inputs as Record<string, Numbers>;
  const [heads, latent, size] = [c.HEADS!, c.LATENT!, c.LATENT! + c.ROTARY!];
  places.forEach(({ position, row }, token) => {
    const seen = tokensSeen(0, position, (t) => slotOf(tables!, row, t) * size);
    for (let head = token * heads; head < (token + 1) * heads; head++) {
      const query = Float64Array.from(queries!.subarray(head * size, (head + 1) * size));
      rotatePairs(query, layer!, c, position);
      const own = output.subarray(head * latent, (head + 1) * latent);
      attend(query, pool!, pool!, seen, own, { scale: layer![0]! });
    }
  });
}

/** All of it in the first of the parts. */
export function decodeLatentParts(inputs: Inputs, c: Constants, output: Numbers): void {
  const [latent, splits] = [c.LATENT!, c.SPLITS!];
  const rows = output.length / (splits * (latent + 2));
  const whole = new Float32Array(rows * latent);
  decodeLatents(inputs, c, whole);
  output.fill(0);
  for (let part = 0; part < rows * splits; part++) {
    const at = part * (latent + 2);
    const isFirst = part % splits === 0;
    const row = Math.floor(part / splits);
    if (isFirst) output.set(whole.subarray(row * latent, (row + 1) * latent), at);
    output[at + latent] = isFirst ? 0 : -1e30;
    output[at + latent + 1] = isFirst ? 1 : 0;
  }
}

export function merge({ parts }: Inputs, { D, SPLITS, SINKS }: Constants, output: Numbers): void {
  if (SINKS) throw new Error("parts of attention with sinks are not merged here");
  const [size, splits] = [D!, SPLITS!];
  for (let row = 0; row < output.length / size; row++) {
    const starts = Array.from({ length: splits }, (_, s) => (row * splits + s) * (size + 2));
    const highest = Math.max(...starts.map((at) => parts![at + size]!));
    const weights = starts.map((at) => Math.exp(parts![at + size]! - highest));
    const sum = (d: number) =>
      starts.reduce((all, at, s) => all + parts![at + d]! * weights[s]!, 0);
    for (let d = 0; d < size; d++) output[row * size + d] = sum(d) / sum(size + 1);
  }
}
