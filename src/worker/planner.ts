// Divides a device's memory for a model: a pure function of the device, the model's needs and the options. A model
// that does not fit is refused with the numbers, before anything is allocated.
import { type MemoryFacts, type MemoryPolicy, roomOf } from "../device/memory.ts";
import type { EngineOptions } from "../engine/protocol.ts";
import { BLOCK_TOKENS } from "../kv/blocks.ts";
import { bytesOf, type Costs, type Demand, layoutFor, layoutOf, slotsFor } from "../kv/budget.ts";
import type { CacheLayout } from "../kv/kv-cache.ts";

export type Machine = MemoryPolicy & {
  facts: MemoryFacts;
  /** Default token budget of a step. */
  tokenBudget: number;
};

export type ModelNeeds = {
  weightBytes: number;
  costs: Costs;
  /** The model's own maximum sequence length. */
  maxPositions: number;
  /** Bytes of the arrays of a step that computes `tokens` at the end of a context of `length`. */
  stepBytes(tokens: number, length: number): number;
};

export type PlanOptions = Pick<
  EngineOptions,
  "maxBatch" | "tokenBudget" | "blocks" | "kvBytes" | "snapshotBytes" | "maxLength"
>;

export type MemoryPlan = {
  weightBytes: number;
  layout: CacheLayout;
  kvBytes: number;
  /** Maximum sequence length, limited by the model, the options or memory. */
  maxLength: number;
  /** Maximum tokens per step, and bytes of its arrays. */
  stepTokens: number;
  stepBytes: number;
  /** Memory that was available before the load. */
  roomBytes: number;
};

/** Minimum KV pool size, if memory allows. */
const LEAST_KV_BYTES = 2 ** 28;

/** The default token budget is halved while a step takes more than this fraction of the memory left by weights. */
const STEP_SHARE = 1 / 4;

/** Halving stops if it saves less than this fraction of a step's memory: KV gathered for a long context stays. */
const WORTH_SAVING = 1 / 5;

/** Minimum token budget that halving may reach. */
const LEAST_STEP_TOKENS = 2 * BLOCK_TOKENS;

/** Errors mention the memory of other models only if it exceeds this number of bytes. */
const MENTIONED_BYTES = 2 ** 24;

export class NoMemoryError extends Error {
  override name = "NoMemoryError";
}

export function planMemory(machine: Machine, needs: ModelNeeds, options: PlanOptions): MemoryPlan {
  const { facts } = machine;
  const { weightBytes, costs, maxPositions } = needs;
  const roomBytes = roomOf(facts);
  const left = roomBytes - weightBytes;
  const asked = typeof options.maxLength === "number" ? options.maxLength : undefined;
  const longest = Math.min(maxPositions, asked ?? maxPositions);
  const share = Math.min(Math.max(0, left) * machine.kvShare, machine.mostKvBytes);

  const demandOf = (stepTokens: number): Demand => ({ ...options, maxLength: longest, stepTokens });
  const poolOf = (stepTokens: number, blocks: number) => {
    const demand = demandOf(stepTokens);
    return layoutOf(costs, demand, blocks, slotsFor(costs, demand, options.kvBytes ?? share));
  };
  const poolFor = (stepTokens: number, length: number) =>
    poolOf(stepTokens, Math.ceil(length / BLOCK_TOKENS));
  const takes = (stepTokens: number, length: number) =>
    bytesOf(costs, poolFor(stepTokens, length)) + needs.stepBytes(stepTokens, length);
  /** Maximum context length that fits in memory. */
  const fittingWith = (stepTokens: number) =>
    longestThat((length) => takes(stepTokens, length) <= left, longest);

  const stepTokens = chooseStep(machine, needs, options, left, fittingWith);
  const step = (length: number) => needs.stepBytes(stepTokens, length);
  const fitting = fittingWith(stepTokens);
  if (fitting < Math.min(BLOCK_TOKENS, longest)) {
    throw refusal(facts, needs, roomBytes, takes(stepTokens, BLOCK_TOKENS));
  }

  const plan = (layout: CacheLayout, maxLength: number): MemoryPlan => {
    const kvBytes = bytesOf(costs, layout);
    const stepBytes = step(maxLength);
    return { weightBytes, layout, kvBytes, maxLength, stepTokens, stepBytes, roomBytes };
  };

  if (options.blocks !== undefined || options.kvBytes !== undefined) {
    const layout =
      options.blocks === undefined
        ? layoutFor(costs, demandOf(stepTokens), options.kvBytes!)
        : poolOf(stepTokens, options.blocks);
    const made = plan(layout, Math.min(longest, lengthOf(layout)));
    const most = left - made.stepBytes;
    if (made.kvBytes > most) {
      throw new NoMemoryError(
        `the KV blocks take ${gib(made.kvBytes)}, but the weights (${gib(weightBytes)}) and steps ` +
          `(${gib(made.stepBytes)}) leave only ${gib(Math.max(0, most))}; ${budget(facts, roomBytes)}: ` +
          "set a smaller --block-pool-size or --kv-memory",
      );
    }
    return made;
  }

  if (asked !== undefined && fitting < longest) {
    const kv = bytesOf(costs, poolFor(stepTokens, longest));
    throw new NoMemoryError(
      `a context of ${longest} tokens takes ${gib(kv)} of KV blocks and ${gib(step(longest))} in steps, ` +
        `but the weights leave only ${gib(left)}: --max-model-len auto gives ${fitting} tokens`,
    );
  }
  const kvBytes = Math.min(Math.max(share, LEAST_KV_BYTES), left - step(fitting));
  const usual = layoutFor(costs, demandOf(stepTokens), kvBytes);
  // A requested context length gets a pool large enough for it.
  const wanted = options.maxLength === undefined ? undefined : poolFor(stepTokens, fitting);
  const layout = wanted && bytesOf(costs, wanted) > bytesOf(costs, usual) ? wanted : usual;
  return plan(layout, Math.min(fitting, lengthOf(layout)));
}

/** Returns MLX's memory limits while models with these plans are loaded. */
export function limitsOf(
  { facts, cache, wires }: Machine,
  plans: readonly MemoryPlan[],
): { wiredBytes: number; cacheBytes: number } {
  const held = sum(plans.map(({ weightBytes, kvBytes }) => weightBytes + kvBytes));
  const step = Math.max(0, ...plans.map(({ stepBytes }) => stepBytes));
  const rest = Math.max(step, facts.usableBytes - held);
  return {
    wiredBytes: wires ? Math.min(facts.usableBytes, Math.ceil(held + step)) : 0,
    cacheBytes: cache === "step" ? Math.ceil(step) : cache === "rest" ? rest : cache,
  };
}

/** Returns the requested token budget. If none is: the default, halved while that notably enlarges the KV pool. */
function chooseStep(
  { tokenBudget }: Machine,
  { stepBytes }: ModelNeeds,
  { maxBatch, tokenBudget: asked }: PlanOptions,
  left: number,
  fittingWith: (stepTokens: number) => number,
): number {
  if (asked !== undefined) {
    const tokens = Math.max(asked, maxBatch);
    const bytes = stepBytes(tokens, tokens);
    if (bytes <= left || left <= 0) return tokens;
    const fitting = longestThat((each) => stepBytes(each, each) <= left, tokens);
    throw new NoMemoryError(
      `a step of ${tokens} tokens takes ${gib(bytes)}, but the weights leave only ${gib(left)}: ` +
        `set a --token-budget of ${fitting} at most`,
    );
  }
  const least = Math.max(maxBatch, LEAST_STEP_TOKENS);
  const length = fittingWith(least);
  let tokens = Math.max(tokenBudget, maxBatch);
  for (; tokens / 2 >= least; tokens /= 2) {
    const bytes = stepBytes(tokens, length);
    const saved = bytes - stepBytes(tokens / 2, length);
    if (bytes <= left * STEP_SHARE || saved < bytes * WORTH_SAVING) break;
  }
  return tokens;
}

/** Maximum sequence length that a pool can hold. */
function lengthOf({ groups }: CacheLayout): number {
  const whole = groups.filter(({ window }) => window === undefined);
  return Math.min(Number.POSITIVE_INFINITY, ...whole.map(({ blocks }) => blocks * BLOCK_TOKENS));
}

/** Finds the largest number up to `most` that fits, by binary search. */
function longestThat(fits: (length: number) => boolean, most: number): number {
  if (fits(most)) return most;
  let [low, high] = [0, most];
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (fits(middle)) low = middle;
    else high = middle;
  }
  return low;
}

function refusal(
  facts: MemoryFacts,
  { weightBytes }: ModelNeeds,
  roomBytes: number,
  leastBytes: number,
): NoMemoryError {
  return new NoMemoryError(
    `the weights take ${gib(weightBytes)}, and KV blocks and steps at least ${gib(leastBytes)}, but ` +
      budget(facts, roomBytes),
  );
}

/** States the memory available for a model, and what limits it. */
function budget({ totalBytes, usableBytes, activeBytes }: MemoryFacts, roomBytes: number): string {
  const reason =
    roomBytes < usableBytes - activeBytes
      ? "other programs use the rest"
      : activeBytes > MENTIONED_BYTES
        ? `the limit is ${gib(usableBytes)}, and models hold ${gib(activeBytes)} of it`
        : `the limit is ${gib(usableBytes)}`;
  return `${gib(roomBytes)} of ${gib(totalBytes)} are available (${reason})`;
}

function gib(bytes: number): string {
  return `${(bytes / 2 ** 30).toFixed(bytes < 2 ** 30 ? 2 : 1)} GiB`;
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((all, each) => all + each, 0);
}
