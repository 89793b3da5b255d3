import { describe, expect, test } from "bun:test";
import { linuxMemory, macMemory, systemMemory } from "../../src/device/system-memory.ts";

const meminfo = "MemTotal:       16384 kB\nMemFree:         1024 kB\nMemAvailable:    8192 kB\n";
const KIB = 1024;

function linux(files: Record<string, string>) {
  return linuxMemory((path) => files[path]);
}

describe("on Linux", () => {
  test("memory is what the kernel could make available", () => {
    expect(linux({ "/proc/meminfo": meminfo })).toEqual({
      totalBytes: 16_384 * KIB,
      availableBytes: 8192 * KIB,
    });
  });

  test("a control group's limit counts, and cached files do not, in both versions", () => {
    const v2 = linux({
      "/proc/meminfo": meminfo,
      "/proc/self/cgroup": "0::/user/serve\n",
      "/sys/fs/cgroup/user/serve/memory.max": "max\n",
      "/sys/fs/cgroup/user/serve/memory.current": "4194304\n",
      "/sys/fs/cgroup/user/memory.max": "6291456\n",
      "/sys/fs/cgroup/user/memory.current": "5242880\n",
      "/sys/fs/cgroup/user/memory.stat": "anon 1\ninactive_file 1024\nactive_file 2048\n",
    });
    expect(v2).toEqual({ totalBytes: 6_291_456, availableBytes: 1_048_576 + 3072 });
    const v1 = linux({
      "/proc/meminfo": meminfo,
      "/proc/self/cgroup": "4:cpu:/x\n3:memory:/serve\n",
      "/sys/fs/cgroup/memory/serve/memory.limit_in_bytes": "6291456",
      "/sys/fs/cgroup/memory/serve/memory.usage_in_bytes": "5242880",
      "/sys/fs/cgroup/memory/serve/memory.stat": "total_inactive_file 1024\n",
      "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
      "/sys/fs/cgroup/memory/memory.usage_in_bytes": "5242880",
    });
    expect(v1).toEqual({ totalBytes: 6_291_456, availableBytes: 1_048_576 + 1024 });
  });

  test("in a container the group of the host's path is looked for where it is mounted", () => {
    const found = linux({
      "/proc/meminfo": meminfo,
      "/proc/self/cgroup": "0::/docker/0123\n",
      "/sys/fs/cgroup/memory.max": "2097152",
      "/sys/fs/cgroup/memory.current": "1048576",
    });
    expect(found).toEqual({ totalBytes: 2_097_152, availableBytes: 1_048_576 });
  });
});

test("on a Mac memory is what programs and the system do not hold", () => {
  const text = `Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                                5000.
Pages active:                            200000.
Pages inactive:                          190000.
Pages speculative:                         3000.
Pages throttled:                              0.
Pages wired down:                         80000.
Pages purgeable:                          10000.
"Translation faults":                1234567890.
File-backed pages:                       150000.
Anonymous pages:                         240000.
Pages stored in compressor:              100000.
Pages occupied by compressor:             30000.
`;
  const totalBytes = 8 * 2 ** 30;
  const held = (80_000 + 240_000 + 30_000 - 10_000) * 16_384;
  expect(macMemory(totalBytes, text)).toEqual({ totalBytes, availableBytes: totalBytes - held });
  expect(macMemory(totalBytes, "")).toBeUndefined();
});

test("this machine's memory is some of what it has", () => {
  const { totalBytes, availableBytes } = systemMemory();
  expect(availableBytes).toBeWithin(2 ** 20, totalBytes);
});
