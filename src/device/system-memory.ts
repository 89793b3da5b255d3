// Memory that this process may use and memory that other programs leave free: on Linux within the cgroup limits, on
// macOS from vm_stat's page counts.
import { readFileSync } from "node:fs";
import { freemem, totalmem } from "node:os";
import { dirname, join } from "node:path";

export type SystemMemory = { totalBytes: number; availableBytes: number };

export function systemMemory(): SystemMemory {
  const found = process.platform === "darwin" ? macMemory(totalmem(), vmStat()) : linuxMemory();
  return found ?? { totalBytes: totalmem(), availableBytes: freemem() };
}

/** Returns a file's text; undefined if the file cannot be read. */
type ReadText = (path: string) => string | undefined;

const readText: ReadText = (path) => {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return undefined;
  }
};

export function linuxMemory(read: ReadText = readText): SystemMemory | undefined {
  const text = read("/proc/meminfo");
  if (text === undefined) return undefined;
  const kib = (name: string) => numberIn(text, new RegExp(`^${name}:\\s*(\\d+) kB$`, "m"));
  const [total, available] = [kib("MemTotal"), kib("MemAvailable")];
  if (total === undefined || available === undefined) return undefined;
  const machine = { totalBytes: total * 1024, availableBytes: available * 1024 };
  return controlGroups(read).reduce(
    (least, group) => ({
      totalBytes: Math.min(least.totalBytes, group.totalBytes),
      availableBytes: Math.min(least.availableBytes, group.availableBytes),
    }),
    machine,
  );
}

/** File names in cgroup v1 and v2. */
const versions = {
  v1: {
    mount: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cached: /^total_(?:in)?active_file (\d+)$/gm,
  },
  v2: {
    mount: "/sys/fs/cgroup",
    limit: "memory.max",
    usage: "memory.current",
    cached: /^(?:in)?active_file (\d+)$/gm,
  },
};

/** Returns the memory of this process' cgroups with a limit. Skips unreadable paths: in a container, the host's. */
function controlGroups(read: ReadText): SystemMemory[] {
  const text = read("/proc/self/cgroup") ?? "";
  const groups: SystemMemory[] = [];
  for (const [, controllers, path] of text.matchAll(/^\d+:([^:]*):(.*)$/gm)) {
    if (controllers !== "" && !controllers!.split(",").includes("memory")) continue;
    const { mount, limit, usage, cached } = versions[controllers === "" ? "v2" : "v1"];
    for (let folder = join(mount, path!); folder.startsWith(mount); folder = dirname(folder)) {
      const most = Number(read(join(folder, limit)) ?? Number.NaN);
      const used = Number(read(join(folder, usage)) ?? Number.NaN);
      if (!Number.isFinite(most) || !Number.isFinite(used)) continue;
      // Counts the page cache as available, because it is reclaimed when memory runs short.
      const stat = read(join(folder, "memory.stat")) ?? "";
      const files = [...stat.matchAll(cached)].reduce((sum, [, bytes]) => sum + Number(bytes), 0);
      groups.push({ totalBytes: most, availableBytes: Math.max(0, most - used + files) });
    }
  }
  return groups;
}

function vmStat(): string {
  try {
    return Bun.spawnSync(["/usr/bin/vm_stat"]).stdout.toString();
  } catch {
    return "";
  }
}

/**
 * Returns the memory of a Mac. Unavailable: wired, anonymous and compressed pages. Available: all other pages,
 * including the file cache and purgeable pages.
 */
export function macMemory(totalBytes: number, vmStat: string): SystemMemory | undefined {
  const pageBytes = numberIn(vmStat, /page size of (\d+) bytes/);
  const pages = (name: string) => numberIn(vmStat, new RegExp(`^${name}:\\s*(\\d+)\\.$`, "m"));
  const held = ["Pages wired down", "Anonymous pages", "Pages occupied by compressor"].map(pages);
  const purgeable = pages("Pages purgeable");
  if (pageBytes === undefined || purgeable === undefined || held.includes(undefined)) {
    return undefined;
  }
  const heldPages = held.reduce<number>((sum, each) => sum + each!, -purgeable);
  return { totalBytes, availableBytes: Math.max(0, totalBytes - heldPages * pageBytes) };
}

function numberIn(text: string, pattern: RegExp): number | undefined {
  const [, found] = pattern.exec(text) ?? [];
  return found === undefined ? undefined : Number(found);
}
