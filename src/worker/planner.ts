// How the memory of a device is divided for a model: a pure function of what the device has, what the model takes
// and what the options ask for. What does not fit is refused with the numbers, before any of it is taken.
import { type MemoryFacts, type MemoryPolicy, roomOf } from "../device/memory.ts";
import type { EngineOptions } from "../engine/protocol.ts";
import { BLOCK_TOKENS } from "../kv/blocks.ts";
import { bytesOf, type Costs, type Demand, layoutFor, layoutOf, slotsFor } from "../kv/budget.ts";
import type { CacheLayout } from "../kv/kv-cache.ts";

export type Machine = MemoryPolicy & {
  facts: MemoryFacts;
  /** Tokens of a step unless the options say. */
  tokenBudget: number;
};

export type ModelNeeds = {
  weightBytes: number;
  costs: Costs;
  /** The longest sequence that the model was made for. */
  maxPositions: number;
  /** What the arrays of a step take that computes so many tokens, the last of them at the end of such a sequence. */
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
  /** The longest sequence: the model takes no longer ones, or there is no memory for them. */
  maxLength: number;
  /** The most tokens of a step, and what its arrays take. */
  stepTokens: number;
  stepBytes: number;
  /** What there was for all of it. */
  roomBytes: number;
};

/** The least that a KV pool is worth, where there is so much. */
const LEAST_KV_BYTES = 2 ** 28;

/** A step has fewer tokens where its arrays would take more than this part of what the weights leave. */
const STEP_SHARE = 1 / 4;

/** And where half as many tokens take so much less: what attention gathers of a long context is always there. */
const WORTH_SAVING = 1 / 5;

/** A step is worth launching with so many tokens of a prompt. */
const LEAST_STEP_TOKENS = 2 * BLOCK_TOKENS;

/** Less than this is not worth a word. */
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
  /** The longest context that there is memory for. */
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
        `the KV blocks take ${gib(made.kvBytes)}, and ${budget(facts, roomBytes)}; the weights take ` +
          `${gib(weightBytes)} and steps ${gib(made.stepBytes)}, so that ${gib(Math.max(0, most))} are left: ` +
          "set a smaller --block-pool-size or --kv-memory",
      );
    }
    return made;
  }

  if (asked !== undefined && fitting < longest) {
    const kv = bytesOf(costs, poolFor(stepTokens, longest));
    throw new NoMemoryError(
      `a context of ${longest} tokens takes ${gib(kv)} of KV blocks and ${gib(step(longest))} in steps, ` +
        `and there are ${gib(left)} beside the weights: --max-model-len auto takes ${fitting} tokens`,
    );
  }
  const kvBytes = Math.min(Math.max(share, LEAST_KV_BYTES), left - step(fitting));
  const usual = layoutFor(costs, demandOf(stepTokens), kvBytes);
  // A context that was asked for gets what it needs, if that is more.
  const wanted = options.maxLength === undefined ? undefined : poolFor(stepTokens, fitting);
  const layout = wanted && bytesOf(costs, wanted) > bytesOf(costs, usual) ? wanted : usual;
  return plan(layout, Math.min(fitting, lengthOf(layout)));
}

/** What MLX is told to keep to while models with these plans are loaded. */
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

/** As many tokens as it is to have, or as leave most of the memory to the KV pool. */
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
      `a step of ${tokens} tokens takes ${gib(bytes)}, and there are ${gib(left)} beside the weights: ` +
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

/** The longest sequence that a pool holds. */
function lengthOf({ groups }: CacheLayout): number {
  const whole = groups.filter(({ window }) => window === undefined);
  return Math.min(Number.POSITIVE_INFINITY, ...whole.map(({ blocks }) => blocks * BLOCK_TOKENS));
}

/** The greatest number up to `most` that fits, where each that is smaller than one that fits does too. */
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
    `the weights take ${gib(weightBytes)}, and KV blocks and steps ${gib(leastBytes)} at least: ` +
      budget(facts, roomBytes),
  );
}

/** How much there is for a model, and why no more. */
function budget({ totalBytes, usableBytes, activeBytes }: MemoryFacts, roomBytes: number): string {
  const reason =
    roomBytes < usableBytes - activeBytes
      ? "other programs hold the rest"
      : activeBytes > MENTIONED_BYTES
        ? `${gib(usableBytes)} may be used, of which models hold ${gib(activeBytes)}`
        : `${gib(usableBytes)} may be used`;
  return `there are ${gib(roomBytes)} of ${gib(totalBytes)}, ${reason}`;
}

function gib(bytes: number): string {
  return `${(bytes / 2 ** 30).toFixed(bytes < 2 ** 30 ? 2 : 1)} GiB`;
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((all, each) => all + each, 0);
}
