// What the emulator finds in kernels that do what no GPU allows, and what it leaves alone.
import { describe, expect, test } from "bun:test";
import { backend } from "../../ffi/native.ts";
import { kernelSource } from "../../src/kernels/host/source.ts";
import { array } from "../../src/mlx/array.ts";
import type { Language } from "../../src/mlx/kernel.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { emulatedKernel } from "../support/emulated-kernel.ts";
import { useMlx } from "../support/mlx.ts";

useMlx();

/** x and y have 64 numbers, and a group 64 lanes. */
function run(body: string, { language = "metal" as Language, groups = 1, threads = 64 } = {}) {
  using _ = new Scope();
  const source = kernelSource(body, language);
  const kernel = emulatedKernel(language, {
    name: "tried",
    inputs: ["x"],
    outputs: ["y"],
    sharedMemory: language === "cuda" ? 256 : 0,
    ...source,
  });
  const configured = kernel.configure({
    outputs: [{ shape: [64], dtype: "float32" }],
    grid: [groups * threads, 1, 1],
    threadGroup: [64, 1, 1],
    template: { T: "float32" },
  });
  const [y] = configured.call(array(Float32Array.from({ length: 64 }, (_, i) => i)));
  return y!.numbers();
}

const PUT = "SHARED float s[64]; s[thread_index] = x[thread_index];";

const READ_OF_WRITTEN =
  /a race: lane \d+ reads byte \d+ of [sy], which lane \d+ has written with no barrier between them/;

const faults: Record<
  string,
  { body: string; found: string | RegExp; groups?: number; threads?: number }
> = {
  "a read past an array": {
    body: "y[thread_index] = x[thread_index + 1];",
    found: "tried (metal), group (0, 0, 0): lane 63 reads 4 bytes at byte 256 of x, which has 256",
  },
  "a read before an array": {
    body: "y[thread_index] = x[thread_index - 1];",
    found: "lane 0 reads 4 bytes at byte -4 of x, which has 256",
  },
  "a read far past an array": {
    body: "y[thread_index] = x[thread_index + (1l << 30)];",
    found: "lane 63 reads 4 bytes at byte 4294967548 of x, which has 256",
  },
  "a write past an array": {
    body: "y[thread_index + 1] = 0;",
    found: "lane 63 writes 4 bytes at byte 256 of y, which has 256",
  },
  "a write past an array of the group's": {
    body: "SHARED float s[64], other[64]; IN_SHARED float* to = s; to[thread_index + 1] = 1; y[thread_index] = other[0];",
    found: "lane 63 writes 4 bytes at byte 256 of s, which has 256",
  },
  "an index past a lane's own array": {
    body: "float own[4] = {1, 2, 3, 4}; y[thread_index] = own[thread_index];",
    found: "lane 63 takes element 63 of 'float [4]' at tried",
  },
  "numbers that are read at once across a border": {
    body: `struct alignas(16) Pack { T x[4]; };
      const Pack own = *reinterpret_cast<const DEVICE Pack*>(x + 1); y[thread_index] = own.x[0] + own.x[3];`,
    found: /lane 63 takes .*Pack.* from an unaligned address, \.\.\.004, at tried/,
  },
  "group memory that nobody has written": {
    body: "SHARED float s[64]; if (lane < 8) s[thread_index] = 1; BARRIER; y[thread_index] = s[thread_index];",
    found: "lane 63 reads byte 252 of s, which nobody has written",
  },
  "group memory that another group has written": {
    body: `SHARED float s[64]; if (cta_x == 0) s[thread_index] = 1; BARRIER;
      if (cta_x == 1) y[thread_index] = s[thread_index];`,
    groups: 2,
    found: /group \(1, 0, 0\): lane \d+ reads byte \d+ of s, which nobody has written/,
  },
  "an output that nobody has written": {
    body: "y[thread_index] += 1;",
    found: "lane 63 reads byte 252 of y, which nobody has written",
  },
  "a read of what another lane writes": {
    body: `${PUT} BARRIER; y[thread_index] = s[63 - thread_index]; s[thread_index] = 2;`,
    found: READ_OF_WRITTEN,
  },
  "a write of what another lane reads": {
    body: `${PUT} BARRIER; y[thread_index] = s[9]; if (thread_index == 9) s[9] = 2;`,
    found:
      "a race: lane 9 writes byte 36 of s, which lane 10 has read with no barrier between them",
  },
  "two writes to one place": {
    body: "y[thread_index / 2] = 1;",
    found: "a race: lane 62 writes byte 124 of y, which lane 63 has written",
  },
  "what another simdgroup has written behind a simdgroup's barrier": {
    body: `SHARED float s[64]; s[thread_index ^ 32] = 1; WARP_BARRIER; y[thread_index] = 1;
      if (warp == 0) y[thread_index] = s[thread_index];`,
    found: READ_OF_WRITTEN,
  },
  "what another lane has written behind a shuffle": {
    body: `${PUT} const float one = SHUFFLE_XOR(1.0f, 1); y[thread_index] = s[thread_index ^ 1] + one;`,
    found: READ_OF_WRITTEN,
  },
  "device memory behind a barrier for threadgroup memory": {
    body: `y[thread_index] = 1; BARRIER; const float other = y[thread_index ^ 1]; BARRIER;
      if (other > 2) y[thread_index] = other;`,
    found: READ_OF_WRITTEN,
  },
  "two groups that write to one place": {
    body: "y[thread_index] = 1;",
    groups: 2,
    found:
      "group (1, 0, 0): a race: lane 63 writes byte 252 of y, which lane 63 of another group has written",
  },
  "a barrier that some lanes do not come to": {
    body: "if (warp == 0) BARRIER; y[thread_index] = 1;",
    found:
      "lane 0 waits at a barrier of the group for lanes that never come there; 32 of 64 have ended",
  },
  "lanes of a simdgroup that do different things together": {
    body: `float one = 1; if (lane < 16) one = SHUFFLE_XOR(one, 1); else WARP_BARRIER; y[thread_index] = one;`,
    found: "lane 47 is at simd_shuffle_xor while others wait at a barrier of its warp",
  },
  "lanes of a simdgroup that shuffle with different masks": {
    body: "y[thread_index] = SHUFFLE_XOR(1.0f, lane < 2 ? 2 : 1);",
    found: "shuffles with mask 1, and the first of its warp with 2",
  },
  "more threadgroup memory than there is": {
    body: `SHARED float s[${32 * 256 + 1}]; s[thread_index] = 1; BARRIER; y[thread_index] = s[63 - thread_index];`,
    found: "tried: 32772 bytes of threadgroup memory are too many",
  },
  "groups of which some would be smaller": {
    body: "y[thread_index] = 1;",
    threads: 40,
    found: "its last groups would have fewer threads",
  },
};

/** Each lane of 16 copies 16 bytes, and reads what another has copied. */
const copies = (behind: string) => `#include "cuda-instructions.h"
  const unsigned memory = dynamic_shared_memory();
  const T* copied = static_cast<const T*>(shared_pointer(memory));
  if (thread_index < 16) cp_async(memory + 16 * thread_index, x + 4 * thread_index, 16);
  cp_async_commit();
  ${behind}
  y[thread_index] = copied[63 - thread_index];`;

const NOT_WAITED_FOR =
  /lane \d+ (reads|writes) byte \d+ of the dynamic shared memory, where a copy of lane \d+ has not been waited for/;

const copyFaults: Record<string, { behind: string; found: RegExp }> = {
  "a copy that is not waited for": { behind: "BARRIER;", found: NOT_WAITED_FOR },
  "a copy that is waited for too late": {
    behind: "BARRIER; y[thread_index] = copied[0]; cp_async_wait(); BARRIER;",
    found: NOT_WAITED_FOR,
  },
  "a wait for copies but the last": {
    behind: "cp_async_wait<1>(); BARRIER;",
    found: NOT_WAITED_FOR,
  },
  "a write to where a copy is under way": {
    behind: "if (thread_index < 16) store_shared(memory + 16 * thread_index, 1u); BARRIER;",
    found: NOT_WAITED_FOR,
  },
  "a copy that others read without a barrier": {
    behind: "cp_async_wait();",
    found: /reads byte \d+ of the dynamic shared memory, which (nobody|lane \d+) has written/,
  },
};

const allowed: Record<string, string> = {
  "a barrier between": `${PUT} BARRIER; y[thread_index] = s[63 - thread_index]; BARRIER; s[thread_index] = 2;`,
  "a simdgroup's barrier between its lanes": `${PUT} WARP_BARRIER; y[thread_index] = s[thread_index ^ 31];
    WARP_BARRIER; s[thread_index] = 2;`,
  "a barrier for device memory": `y[thread_index ^ 63] = x[thread_index]; threadgroup_barrier(mem_flags::mem_device);
    const float mine = y[thread_index]; threadgroup_barrier(mem_flags::mem_device); y[thread_index] = mine;`,
};

describe.skipIf(backend() !== "cpu")("the emulator", () => {
  test.each(Object.entries(faults))(
    "finds %s",
    (_, { body, found, ...launch }) => expect(() => run(body, launch)).toThrow(found),
    60_000,
  );

  test.each(Object.entries(copyFaults))(
    "finds %s",
    (_, { behind, found }) =>
      expect(() => run(copies(behind), { language: "cuda" })).toThrow(found),
    60_000,
  );

  test("allows a copy that is waited for before a barrier", () => {
    const numbers = run(copies("cp_async_wait(); BARRIER;"), { language: "cuda" });
    expect(numbers).toEqual(Array.from({ length: 64 }, (_, i) => 63 - i));
  }, 60_000);

  test.each(Object.entries(allowed))(
    "allows %s",
    (_, body) => {
      const numbers = [...run(body)].sort((a, b) => a - b);
      expect(numbers).toEqual(Array.from({ length: 64 }, (_, i) => i));
    },
    60_000,
  );

  test("allows groups of CUDA's to write the same, and nothing else", () => {
    const launch = { language: "cuda", groups: 2 } as const;
    expect(run("y[thread_index] = 7;", launch)).toEqual(new Array(64).fill(7));
    expect(() => run("y[thread_index] = cta_x;", launch)).toThrow(
      "tried (cuda), group (1, 0, 0): a race: it writes to y what another group has used, and not the same",
    );
  }, 60_000);

  test("finds what CUDA's kernels touch before the launch before them has ended", () => {
    const launch = { language: "cuda" } as const;
    expect(() => run("y[thread_index] = 1; AWAIT_INPUTS;", launch)).toThrow(
      "lane 63 writes y before it waits for the launch before",
    );
    expect(() =>
      run("const float early = x[thread_index]; AWAIT_INPUTS; y[thread_index] = early;", launch),
    ).toThrow("lane 63 reads x before it waits for the launch before");
    expect(run("AWAIT_INPUTS; y[thread_index] = x[thread_index];", launch)[63]).toBe(63);
  }, 60_000);

  test("runs kernels after a fault as before", () => {
    expect(() => run(faults["a read past an array"]!.body)).toThrow("lane 63 reads");
    expect(run("y[thread_index] = x[thread_index];")[63]).toBe(63);
  }, 60_000);
});
