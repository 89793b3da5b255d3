// The memory that a sketched step takes at its peak, beyond what is there before it. The host runs ahead of the
// device: an operation's memory is taken when the host comes to it, and given back when the device is done with the
// last operation that reads it.
import type { Sketch, SketchNode } from "./sketch.ts";

/** Whether an array's memory has gaps, as that of some views. */
export type HasGaps = (node: SketchNode) => boolean;

/** How a backend of MLX computes a graph, as far as memory shows it. */
export type Evaluation = {
  /** How far the host may be ahead: so many full batches of launches, and the one that it fills. */
  batches: number;
  /** A batch is full with so many launches, or when they have read so many numbers. */
  launches: number;
  numbers: number;
  /** Launches of an operation; a view computes nothing. */
  launchesOf(node: SketchNode, isView: boolean, hasGaps: HasGaps): number;
  /** What MLX's operation takes beside its output, and gives back with its inputs. */
  temporaryBytes(node: SketchNode, hasGaps: HasGaps): number;
};

/** The same memory under another shape. */
const views = new Set([
  ...["mlx_reshape", "mlx_flatten", "mlx_swapaxes", "mlx_expand_dims_axes", "mlx_squeeze_axes"],
  ...["mlx_slice", "mlx_split", "mlx_split_sections"],
]);

/** Views only of memory without gaps; else copies. */
const regroupings = new Set(["mlx_reshape", "mlx_flatten"]);

/** They write over an input of the same size that nothing else reads. */
const inPlace = new Set([
  ...["mlx_erf", "mlx_erfinv", "mlx_exp", "mlx_expm1", "mlx_log", "mlx_negative", "mlx_round"],
  ...["mlx_sigmoid", "mlx_tanh", "mlx_add", "mlx_subtract", "mlx_multiply", "mlx_divide"],
  ...["mlx_floor_divide", "mlx_power", "mlx_maximum", "mlx_minimum", "mlx_logaddexp", "mlx_clip"],
  ...["mlx_where", "mlx_softmax_axes", "mlx_astype", "mlx_closure_apply"],
  ...["mlx_fast_layer_norm", "mlx_fast_rms_norm", "mlx_fast_rope_dynamic"],
]);

/** Memory of one or more arrays, from the first to the last that uses it. */
type Buffer = {
  bytes: number;
  readers: number;
  isHeld: boolean;
  lastBatch: number;
  /** What was to be here is in that one. */
  into?: Buffer;
};

type Place = { buffer: Buffer | undefined; isView: boolean; hasGaps: boolean };

export function peakBytes({ nodes, held }: Sketch, evaluation: Evaluation): number {
  const places = placesOf(nodes, held);
  const released = new Map<number, number>();
  const release = (batch: number, bytes: number) => {
    released.set(batch, (released.get(batch) ?? 0) + bytes);
  };
  const hasGaps: HasGaps = (node) => places.get(node)?.hasGaps ?? false;
  const batches = batchesOf(nodes, places, hasGaps, evaluation);
  nodes.forEach((node, i) => {
    const { last } = batches[i]!;
    for (const each of [node, ...node.parents]) {
      const buffer = bufferOf(places.get(each));
      if (buffer) buffer.lastBatch = Math.max(buffer.lastBatch, last);
    }
  });
  const counted = new Set<Buffer>();
  let [now, peak, freedUpTo] = [0, 0, -1];
  nodes.forEach((node, i) => {
    const { first, last } = batches[i]!;
    for (; freedUpTo < first - evaluation.batches - 1; ) now -= released.get(++freedUpTo) ?? 0;
    const place = places.get(node)!;
    if (place.isView) return;
    const buffer = bufferOf(place);
    if (buffer && !counted.has(buffer)) {
      counted.add(buffer);
      now += buffer.bytes;
      if (!buffer.isHeld) release(buffer.lastBatch, buffer.bytes);
    }
    const temporary = evaluation.temporaryBytes(node, hasGaps);
    now += temporary;
    release(last, temporary);
    peak = Math.max(peak, now);
  });
  return peak;
}

/** Where each array is: in a buffer of its own, or in that of an array that it is a view of or writes over. */
function placesOf(
  nodes: readonly SketchNode[],
  held: ReadonlySet<SketchNode>,
): Map<SketchNode, Place> {
  const places = new Map<SketchNode, Place>();
  const own = (node: SketchNode): Place => ({
    buffer: { bytes: node.bytes, readers: 0, isHeld: held.has(node), lastBatch: 0 },
    isView: false,
    hasGaps: false,
  });
  for (const node of nodes) {
    const [source] = node.parents;
    const seen = source && (places.get(source) ?? { buffer: undefined, hasGaps: false });
    const isCopy = regroupings.has(node.symbol) && seen?.hasGaps;
    if (!seen || !views.has(node.symbol) || isCopy) {
      places.set(node, own(node));
    } else {
      if (held.has(node) && seen.buffer) seen.buffer.isHeld = true;
      const hasGaps = seen.hasGaps || leavesGaps(node, source);
      places.set(node, { buffer: seen.buffer, isView: true, hasGaps });
    }
    if (places.get(node)!.isView) continue;
    for (const parent of node.parents) {
      const buffer = places.get(parent)?.buffer;
      if (buffer) buffer.readers += 1;
    }
  }
  for (const node of nodes) {
    const place = places.get(node)!;
    if (place.isView || !inPlace.has(node.symbol)) continue;
    const written = node.parents
      .map((parent) => bufferOf(places.get(parent)))
      .find((each) => each && each.readers === 1 && !each.isHeld && each.bytes === node.bytes);
    if (!written) continue;
    const { readers, isHeld } = place.buffer!;
    place.buffer!.into = written;
    Object.assign(written, { readers, isHeld });
  }
  return places;
}

function bufferOf(place: Place | undefined): Buffer | undefined {
  let found = place?.buffer;
  while (found?.into) found = found.into;
  return found;
}

function leavesGaps({ symbol, shape, bytes }: SketchNode, source: SketchNode): boolean {
  if (symbol === "mlx_swapaxes") return true;
  if (bytes === source.bytes) return false;
  // Cut along the first axis it is all there.
  return shape.slice(1).join() !== source.shape.slice(1).join();
}

/** The batches that the first and the last launch of each array are in. */
function batchesOf(
  nodes: readonly SketchNode[],
  places: ReadonlyMap<SketchNode, Place>,
  hasGaps: HasGaps,
  { launches: most, numbers: mostNumbers, launchesOf }: Evaluation,
): { first: number; last: number }[] {
  let [batch, launches, numbers] = [0, 0, 0];
  return nodes.map((node) => {
    const { isView } = places.get(node)!;
    const first = batch;
    launches += launchesOf(node, isView, hasGaps);
    const last = first + Math.max(0, Math.ceil(launches / most) - 1);
    if (!isView) for (const { shape } of node.parents) numbers += shape.reduce((a, b) => a * b, 1);
    batch += Math.floor(launches / most);
    launches %= most;
    if (numbers > mostNumbers && batch === first) {
      batch += 1;
      launches = 0;
    }
    if (batch > first) numbers = 0;
    return { first, last };
  });
}
