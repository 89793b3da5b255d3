// How the memory of a device is divided, as numbers: nothing is loaded here.
import { describe, expect, test } from "bun:test";
import { defaultEngineOptions } from "../../src/engine/protocol.ts";
import {
  limitsOf,
  type Machine,
  type ModelNeeds,
  type PlanOptions,
  planMemory,
} from "../../src/worker/planner.ts";

const GB = 2 ** 30;

/** A Mac whose programs hold 3 GB. */
function mac(size: number, others = 3): Machine {
  const totalBytes = size * GB;
  return {
    kvShare: 1 / 2,
    mostKvBytes: Number.POSITIVE_INFINITY,
    cache: "step",
    wires: true,
    tokenBudget: 512,
    facts: {
      ...{ totalBytes, usableBytes: (totalBytes * 2) / 3 },
      ...{ availableBytes: totalBytes - others * GB, activeBytes: 0 },
    },
  };
}

/** 128 KiB of KV a token; a step takes 1 MB a token and 4 KB for each token that it sees. */
const needs: ModelNeeds = {
  weightBytes: 2 * GB,
  costs: { groups: [{ blockBytes: 32 * 2 ** 17, window: undefined }], slotBytes: 0 },
  maxPositions: 131_072,
  stepBytes: (tokens, length) => tokens * 1e6 + length * 4e3,
};

const plan = (machine: Machine, options: Partial<PlanOptions> = {}, model = needs) =>
  planMemory(machine, model, { ...defaultEngineOptions, ...options });

describe("a plan", () => {
  test("takes no more than there is, and is sooner limited by what other programs hold", () => {
    for (const size of [8, 16, 64]) {
      for (const others of [1, 3, 5]) {
        const machine = mac(size, others);
        const { facts } = machine;
        const room = Math.min(facts.usableBytes, facts.availableBytes);
        if (room < 2.3 * GB) continue;
        const found = plan(machine);
        expect(found.roomBytes).toBe(room);
        expect(found.weightBytes + found.kvBytes + found.stepBytes).toBeLessThanOrEqual(room);
        expect(found.maxLength).toBeLessThanOrEqual(32 * found.layout.groups[0]!.blocks);
      }
    }
  });

  test("gives half of what the weights leave to KV blocks", () => {
    const { kvBytes, roomBytes } = plan(mac(16));
    expect(kvBytes / (roomBytes - needs.weightBytes)).toBeWithin(0.49, 0.5);
  });

  test("has no more blocks than a full batch could use", () => {
    const { layout, maxLength } = plan(mac(64), {}, { ...needs, maxPositions: 1024 });
    expect(layout.groups[0]!.blocks).toBe(32 * (1024 / 32));
    expect(maxLength).toBe(1024);
  });

  test("has shorter steps where memory is short, as long as that saves something", () => {
    expect(plan(mac(64)).stepTokens).toBe(512);
    const tight = { ...needs, weightBytes: 4 * GB };
    expect(plan(mac(8), {}, tight).stepTokens).toBeLessThan(512);
    const constant = { ...tight, stepBytes: () => 0.5 * GB };
    expect(plan(mac(8), {}, constant).stepTokens).toBe(512);
  });

  test("on a CPU has the KV memory that it always had", () => {
    const machine = { ...mac(64), mostKvBytes: GB, cache: 2 ** 25, wires: false };
    expect(plan(machine).kvBytes).toBe(GB);
    expect(limitsOf(machine, [plan(machine)])).toEqual({ wiredBytes: 0, cacheBytes: 2 ** 25 });
  });
});

describe("the context", () => {
  test("with auto is the longest for which blocks and a step fit", () => {
    const [usual, longest] = [plan(mac(16)), plan(mac(16), { maxLength: "auto" })];
    expect(longest.maxLength).toBeGreaterThan(usual.maxLength);
    const { roomBytes, weightBytes, kvBytes, stepBytes } = longest;
    const left = roomBytes - weightBytes - kvBytes - stepBytes;
    expect(left).toBeWithin(0, 32 * 2 ** 17 + 32 * 4e3);
    expect(() => plan(mac(16), { maxLength: longest.maxLength })).not.toThrow();
  });

  test("that was asked for gets its blocks, also if that is more than half", () => {
    const usual = plan(mac(16)).maxLength;
    const { maxLength, kvBytes } = plan(mac(16), { maxLength: usual + 3200 });
    expect(maxLength).toBe(usual + 3200);
    expect(kvBytes).toBeGreaterThan(plan(mac(16)).kvBytes);
  });

  test("that does not fit is refused with what would", () => {
    const { maxLength } = plan(mac(16), { maxLength: "auto" });
    expect(() => plan(mac(16), { maxLength: 131_072 })).toThrow(
      `a context of 131072 tokens takes 16.0 GiB of KV blocks and 0.97 GiB in steps, ` +
        `but the weights leave only 8.7 GiB: --max-model-len auto gives ${maxLength} tokens`,
    );
  });
});

describe("refused with the numbers are", () => {
  test("weights that do not fit, and why", () => {
    const large = { ...needs, weightBytes: 16 * GB };
    expect(() => plan(mac(8), {}, large)).toThrow(
      /^the weights take 16\.0 GiB, .* 5\.0 GiB of 8\.0 GiB are available \(other programs use the rest\)$/,
    );
    expect(() => plan(mac(8, 1), {}, large)).toThrow(
      /5\.3 GiB of 8\.0 GiB are available \(the limit is 5\.3 GiB\)$/,
    );
    const second = mac(16);
    second.facts.activeBytes = 10 * GB;
    expect(() => plan(second)).toThrow(/limit is 10\.7 GiB, and models hold 10\.0 GiB of it\)$/);
  });

  test("a KV cache, in bytes or blocks", () => {
    const says =
      /^the KV blocks take 8\.0 GiB, but .* leave only 2\.\d GiB; 5\.0 GiB of .*: set a smaller/;
    expect(() => plan(mac(8), { kvBytes: 8 * GB })).toThrow(says);
    expect(() => plan(mac(8), { blocks: 2048 })).toThrow(says);
    expect(plan(mac(8), { kvBytes: GB }).kvBytes).toBe(GB);
    expect(plan(mac(8), { blocks: 256 }).layout.groups[0]!.blocks).toBe(256);
  });

  test("a step", () => {
    expect(() => plan(mac(8), { tokenBudget: 8192 })).toThrow(
      /^a step of 8192 tokens takes 7\.7 GiB, .* leave only 3\.0 GiB: set a --token-budget of (\d+) at most$/,
    );
    expect(plan(mac(8), { tokenBudget: 1024 }).stepTokens).toBe(1024);
  });
});

describe("limits of MLX", () => {
  test("are what all models take, and the largest step once", () => {
    const machine = mac(64);
    const one = plan(machine, { kvBytes: GB });
    const other = plan(machine, { kvBytes: 2 * GB, tokenBudget: 256 });
    const { wiredBytes, cacheBytes } = limitsOf(machine, [one, other]);
    expect(wiredBytes).toBe(Math.ceil(7 * GB + Math.max(one.stepBytes, other.stepBytes)));
    expect(cacheBytes).toBe(Math.ceil(Math.max(one.stepBytes, other.stepBytes)));
    expect(limitsOf(machine, [])).toEqual({ wiredBytes: 0, cacheBytes: 0 });
  });

  test("are never above the recommended working set, which Metal would refuse", () => {
    const machine = mac(8, 0);
    const found = plan(machine, { maxLength: "auto" });
    expect(limitsOf(machine, [found, found]).wiredBytes).toBe(machine.facts.usableBytes);
  });
});
