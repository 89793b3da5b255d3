// Ranks that each have a part of the vocabulary: embedded tokens are added up, logits are put side by side.
import type { Linear } from "../../device/device.ts";
import type { MlxArray } from "../../mlx/array.ts";
import type { Group } from "../../mlx/distributed.ts";
import {
  astype,
  clip,
  concatenate,
  expandDims,
  greaterEqual,
  less,
  logicalAnd,
  multiply,
  reshape,
  slice,
  subtract,
  swapAxes,
  zeros,
} from "../../mlx/ops.ts";
import type { Slice } from "./extents.ts";

type Lookup = (tokens: MlxArray) => MlxArray;

/** Tokens (T) that another rank has are 0 here: the sum over the ranks has them all. */
export function ownTokens(lookup: Lookup, { first, count }: Slice, group: Group): Lookup {
  return (tokens) => {
    const rows = subtract(astype(tokens, "int32"), first);
    const isOwn = logicalAnd(greaterEqual(rows, 0), less(rows, count));
    const found = lookup(clip(rows, 0, count - 1)); // (T, D)
    return group.allSum(multiply(found, astype(expandDims(isOwn, -1), found.dtype)));
  };
}

/** (T, own part) -> (T, vocabulary), on every rank. The last rank's part may be smaller. */
export function allLogits(product: Linear, { count, of }: Slice, group: Group): Linear {
  const most = Math.ceil(of / group.size);
  return (x, fused) => {
    const own = product(x, fused);
    const rows = own.shape[0]!;
    const rest = most - count;
    const padded = rest > 0 ? concatenate([own, zeros([rows, rest], own.dtype)], -1) : own;
    const all = reshape(group.allGather(padded), [group.size, rows, most]);
    const whole = reshape(swapAxes(all, 0, 1), [rows, group.size * most]);
    return whole.shape[1] === of ? whole : slice(whole, 1, 0, of);
  };
}
