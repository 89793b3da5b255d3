// The kernels that a Metal device launches on pools, in plain arithmetic: what one launch computes, from its inputs and
// its constants as the kernel gets them. All numbers are float32. Other than PlainAttention and plainRecurrence they
// stand in for single launches, so that the code that launches kernels (src/kernels) is what runs.
export type Numbers = Float32Array | Int32Array;

/** A kernel's inputs by their names. */
export type Inputs = Readonly<Record<string, Numbers>>;

/** Its template arguments, with 1 for true. */
export type Constants = Readonly<Record<string, number>>;

/** Writes to its output, and to what `writes` names. */
export type PlainKernel = {
  writes: readonly string[];
  run(inputs: Inputs, constants: Constants, output: Numbers): void;
};

const BLOCK = 32;

/** By their names in src/kernels. */
export const plainKernels: Readonly<Record<string, PlainKernel>> = {
  prepare: {
    writes: ["keys", "values"],
    run: (inputs, c, output) => {
      writeHeads(inputs, c, placesOf(inputs.places!), output);
    },
  },
  attend: {
    writes: [],
    run: (inputs, c, output) => {
      attendHeads(inputs, c, inputs.queries!, placesOf(inputs.places!), output);
    },
  },
  decode: { writes: ["keys", "values"], run: decode },
  copy: { writes: ["pool"], run: copy },
  latent_write: { writes: ["pool"], run: writeLatents },
  latent_attend: {
    writes: [],
    run: (inputs, c, output) => {
      attendLatents(inputs, c, placesOf(inputs.places!), output);
    },
  },
  latent_decode_parts: { writes: ["pool"], run: decodeLatentParts },
  merge: { writes: [], run: merge },
  convolve: { writes: ["pool"], run: convolve },
  scan: { writes: ["pool"], run: scan },
  scan_heads: { writes: ["pool"], run: scan },
};

type Place = { position: number; slot: number; row: number };

function placesOf(places: Numbers): Place[] {
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

function decode(inputs: Inputs, c: Constants, output: Numbers): void {
  const places = newestPlaces(inputs.tables!);
  const queries = new Float32Array(places.length * c.HEADS! * c.D!);
  writeHeads(inputs, c, places, queries);
  attendHeads(inputs, c, queries, places, output);
}

function writeHeads(inputs: Inputs, c: Constants, places: readonly Place[], queries: Numbers) {
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

function attendHeads(
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
function copy({ pool, pairs }: Inputs, { D, KV_HEADS }: Constants, output: Numbers): void {
  const size = KV_HEADS! * BLOCK * D!;
  const all = Array.from({ length: pairs!.length / 2 }, (_, i) => {
    return { from: pairs![2 * i]!, to: pairs![2 * i + 1]! };
  });
  refuseChains(all);
  for (const { from, to } of all) pool!.copyWithin(to * size, from * size, (from + 1) * size);
  output.fill(1);
}

/** What belongs to one launch has no order: nothing may read what another writes. */
function refuseChains(moves: readonly { from: number; to: number }[]): void {
  for (const a of moves)
    for (const b of moves)
      if (a !== b && a.from === b.to) throw new Error(`a launch reads and writes ${a.from}`);
}

// ---- Latents

function writeLatents(inputs: Inputs, c: Constants, output: Numbers): void {
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

function attendLatents(inputs: Inputs, c: Constants, places: readonly Place[], output: Numbers) {
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
function decodeLatentParts(inputs: Inputs, c: Constants, output: Numbers): void {
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

function merge({ parts }: Inputs, { D, SPLITS, SINKS }: Constants, output: Numbers): void {
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

// ---- Recurrent layers

function movesOf(moves: Numbers) {
  const all = Array.from({ length: moves[0]! }, (_, row) => {
    const [first, count, from, to] = moves.subarray(4 * (1 + row)) as unknown as [
      number,
      number,
      number,
      number,
    ];
    return { first, count, from, to };
  });
  refuseChains(all);
  return all;
}

function convolve(inputs: Inputs, c: Constants, output: Numbers): void {
  const { x, pool, moves, weight, bias } = inputs as Record<string, Numbers>;
  const [channels, kept] = [c.CHANNELS!, c.TAPS! - 1];
  const size = kept * channels;
  for (const { first, count, from, to } of movesOf(moves!)) {
    const all = new Float32Array(size + count * channels);
    if (from >= 0) all.set(pool!.subarray(from * size, (from + 1) * size));
    for (let t = 0; t < count; t++) {
      const at = (first + t) * c.WIDTH! + c.COLUMN!;
      all.set(x!.subarray(at, at + channels), size + t * channels);
    }
    for (let i = 0; i < count * channels; i++) {
      let sum = c.BIASED ? bias![i % channels]! : 0;
      for (let tap = 0; tap <= kept; tap++)
        sum += weight![tap * channels + (i % channels)]! * all[i + tap * channels]!;
      output[first * channels + i] = c.SILU ? sum / (1 + Math.exp(-sum)) : sum;
    }
    pool!.set(all.subarray(all.length - size), to * size);
  }
}

function scan(inputs: Inputs, c: Constants, output: Numbers): void {
  const { x, pool, moves, numbers } = inputs as Record<string, Numbers>;
  const [heads, keyDim, valueDim] = [c.HEADS!, c.KEY_DIM!, c.VALUE_DIM!];
  const size = heads * valueDim * keyDim;
  const [eps, queryScale, keyScale] = numbers as unknown as [number, number, number];
  for (const { first, count, from, to } of movesOf(moves!)) {
    const states = Float64Array.from(
      from >= 0 ? pool!.subarray(from * size, (from + 1) * size) : new Float32Array(size),
    );
    for (let token = first; token < first + count; token++) {
      for (let head = 0; head < heads; head++) {
        const keyHead = Math.floor(head / (heads / c.KEY_HEADS!));
        const part = (column: number, index: number, length: number) => {
          const at = token * c.WIDTH! + column + index * length;
          return Float64Array.from(x!.subarray(at, at + length));
        };
        const query = part(c.QUERIES!, keyHead, keyDim);
        const key = part(c.KEYS!, keyHead, keyDim);
        if (c.NORMED) {
          scaleToRms(query, eps, queryScale);
          scaleToRms(key, eps, keyScale);
        }
        const value = part(c.VALUES!, head, valueDim);
        const { decays, beta } = gatesOf(inputs, c, token, head);
        const find = c.ERASES ? part(c.FINDS!, keyHead, keyDim) : undefined;
        const put = c.ERASES ? part(c.PUTS!, keyHead, keyDim) : undefined;
        const read = new Float64Array(valueDim);
        for (let v = 0; v < valueDim; v++) {
          const at = (head * valueDim + v) * keyDim;
          const row = states.subarray(at, at + keyDim);
          for (let k = 0; k < keyDim; k++) row[k]! *= decays[k % decays.length]!;
          const found = c.DELTA_RULE ? dot(row, key) : 0;
          const erased = find ? dot(row, find) : 0;
          const added = beta * (value[v]! - found);
          for (let k = 0; k < keyDim; k++) row[k]! += added * key[k]! - erased * (put?.[k] ?? 0);
          read[v] = dot(row, query) + (c.SKIP ? inputs.skip![head]! * value[v]! : 0);
        }
        if (c.NORM_OUTPUT) gateOutput(read, inputs, c, token, head);
        output.set(read, (token * heads + head) * valueDim);
      }
    }
    pool!.set(states, to * size);
  }
}

/** How a head's state decays, one number or one a key feature, and how much of the token it takes. */
function gatesOf(inputs: Inputs, c: Constants, token: number, head: number) {
  const { raw, rate, bias, numbers, decays, betas } = inputs as Record<string, Numbers>;
  const [heads, each] = [c.HEADS!, c.BY_FEATURE ? c.KEY_DIM! : 1];
  if (!c.RAW) {
    const at = (token * heads + head) * each;
    return { decays: decays!.subarray(at, at + each), beta: betas![token * heads + head]! };
  }
  const at = token * c.RAW_WIDTH!;
  const step = numbers![3]! * raw![at + c.STEPS! + head]! + bias![head]!;
  const softplus = Math.max(step, 0) + Math.log1p(Math.exp(-Math.abs(step)));
  const size = Math.min(Math.max(softplus, numbers![4]!), numbers![5]!);
  const rates = Array.from(rate!.subarray(head * each, (head + 1) * each));
  const beta = c.HAS_BETAS ? numbers![7]! * sigmoid(raw![at + c.BETAS! + head]!) : size;
  return { decays: rates.map((own) => Math.exp(own * size)), beta };
}

function gateOutput(read: Float64Array, inputs: Inputs, c: Constants, token: number, head: number) {
  scaleToRms(read, inputs.numbers![6]!, 1);
  for (let d = 0; d < read.length; d++) {
    const gate = inputs.raw![token * c.RAW_WIDTH! + c.GATES! + head * read.length + d]!;
    read[d]! *= inputs.weight![d]! * gate * sigmoid(gate);
  }
}

function scaleToRms(x: Float64Array, eps: number, scale: number): void {
  const factor = scale / Math.sqrt(dot(x, x) / x.length + eps);
  for (let i = 0; i < x.length; i++) x[i]! *= factor;
}

function dot(a: Float64Array, b: Float64Array): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i]! * b[i]!;
  return sum;
}

const sigmoid = (x: number) => 1 / (1 + Math.exp(-x));
