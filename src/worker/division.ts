// Divides a model among ranks: tensor parallel (a part of every layer) or pipeline parallel (some layers).
import type { Device } from "../device/device.ts";
import type { Division, Parallel } from "../engine/protocol.ts";
import { type Group, plannedGroup } from "../mlx/distributed.ts";
import type { LoadOptions } from "../model/load.ts";
import type { LayerSplit } from "../model/weights/stages.ts";
import { sketchParts } from "./step-needs.ts";

/** Ranks of a model: their number, how many of them share this machine, and each one's memory once known. */
export type Ranks = {
  size: number;
  localSize: number;
  division: Division;
  memory?: readonly number[] | undefined;
};

/** How a model is divided, as options of a load. */
export type Parts = {
  group: Group;
  parallel: Parallel;
  layers: LayerSplit;
  memory: readonly number[];
};

/** Tensor parallel is not chosen if one rank's part exceeds an equal part of the weights by this factor. */
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
  /** Returns undefined if the layers cannot be divided, or on another error, which the load will report. */
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
