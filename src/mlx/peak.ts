// Estimates the peak memory of a sketched step, beyond the memory held before it. The host runs ahead of the device:
// a buffer is allocated when the host launches the operation that writes it, and freed when the device has finished
// the last operation that reads it.
import { operations } from "../../ffi/symbols.ts";
import type { Sketch, SketchNode } from "./sketch.ts";

/** Whether there are gaps in an array's memory, as in some views. */
export type HasGaps = (node: SketchNode) => boolean;

/** How an MLX backend evaluates a graph, as far as it affects memory. */
export type Evaluation = {
  /** Maximum full batches of launches that the host is ahead of the device, besides the batch it is filling. */
  batches: number;
  /** A batch is full after this many launches, or after its launches have read this many elements (`numbers`). */
  launches: number;
  numbers: number;
  /** Returns the number of launches of an operation or view. */
  launchesOf(node: SketchNode, isView: boolean, hasGaps: HasGaps): number;
  /** Returns the temporary memory of MLX's operation, which is freed together with the operation's inputs. */
  temporaryBytes(node: SketchNode, hasGaps: HasGaps): number;
};

/** Memory of an array and of all arrays that view it or overwrite it. */
type Buffer = {
  bytes: number;
  readers: number;
  isHeld: boolean;
  lastBatch: number;
  /** Buffer that the operation overwrites instead of allocating this one. */
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

/** Finds the buffer of each array: its own, or that of an array that it views or overwrites. */
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
    const isCopy = operations.regroupings.has(node.symbol) && seen?.hasGaps;
    if (!seen || !operations.views.has(node.symbol) || isCopy) {
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
    if (place.isView || !operations.overwriting.has(node.symbol)) continue;
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
  // A slice along the first axis is contiguous.
  return shape.slice(1).join() !== source.shape.slice(1).join();
}

/** Returns, per array, the index of the batch with its first launch, and of the batch with its last launch. */
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
