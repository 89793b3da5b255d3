// The kernels of recurrent layers in plain arithmetic (plain-kernels.ts).
import { type Constants, type Inputs, type Numbers, refuseChains } from "./plain-kernel.ts";

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

export function convolve(inputs: Inputs, c: Constants, output: Numbers): void {
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

export function scan(inputs: Inputs, c: Constants, output: Numbers): void {
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
