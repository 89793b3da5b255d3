// How a model is divided among ranks: parts of every layer, or some of the layers each.
import type { Device } from "../device/device.ts";
import type { Division, Parallel } from "../engine/protocol.ts";
import { type Group, plannedGroup } from "../mlx/distributed.ts";
import type { LoadOptions } from "../model/load.ts";
import type { LayerSplit } from "../model/weights/stages.ts";
import { sketchParts } from "./step-needs.ts";

/** Ranks that a model is divided among, how many of them share this machine, and the memory of each once it is known. */
export type Ranks = {
  size: number;
  localSize: number;
  division: Division;
  memory?: readonly number[] | undefined;
};

/** As a load takes them. */
export type Parts = {
  group: Group;
  parallel: Parallel;
  layers: LayerSplit;
  memory: readonly number[];
};

/** Parts of every layer are not worth it where the largest has so much more than its share of the weights. */
const UNEVEN = 1.25;

type Kind = Pick<LoadOptions, "dtype" | "keepDequantized">;

export function divide(device: Device, path: string, kind: Kind, ranks: Ranks): Parts {
  const { size, division } = ranks;
  const memory = ranks.memory ?? Array<number>(size).fill(1);
  const layers = division.layers ? { ranges: division.layers } : { memory };
  const partsOf = (parallel: Parallel): Parts => {
    return { group: plannedGroup(0, size), parallel, layers, memory };
  };
  const { parallel } = division;
  if (parallel !== "auto") return partsOf(parallel);
  if (division.layers) return partsOf("pipeline");
  const weightsOf = (parts?: Parts) => sketchParts(device, path, { ...kind, ...parts }).weightBytes;
  /** Undefined for a model whose layers cannot be divided; what else may be wrong with it, its load says. */
  const pipeline = () => {
    const parts = partsOf("pipeline");
    try {
      weightsOf(parts);
      return parts;
    } catch {
      return undefined;
    }
  };
  const tensor = partsOf("tensor");
  const isNear = ranks.localSize === size;
  const isEven = isNear && weightsOf(tensor) <= (UNEVEN / size) * weightsOf();
  return isEven ? tensor : (pipeline() ?? tensor);
}
