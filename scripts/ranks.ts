// Every architecture, divided among 2, 3 and 4 ranks on this machine: each must draw what it draws alone.
//   npm run -s ranks -- [--ranks 2,3,4] [--parallel tensor,pipeline] [--connections ring] [names of tiny models]
import { parseArgs } from "node:util";
import type { Connections } from "../src/mlx/distributed.ts";
import type { Parallel } from "../src/model/weights.ts";
import { runOnRanks } from "../test/support/rank-processes.ts";
import type { RankResult } from "../test/support/rank-program.ts";
import { tinyCases } from "../test/support/tiny-models.ts";

/** Tiny models that one start of the ranks runs, and how long they may take. */
const SOME = 40;
const TIMEOUT_MS = 300_000;

const { values, positionals } = parseArgs({
  options: {
    ranks: { type: "string", default: "2,3,4" },
    parallel: { type: "string", default: "tensor,pipeline" },
    connections: { type: "string", default: "shared" },
  },
  allowPositionals: true,
});
const connections = values.connections as Connections;
const names = positionals.length > 0 ? positionals : tinyCases.map(({ name }) => name);

let failures = 0;
for (const size of values.ranks.split(",").map(Number)) {
  for (let from = 0; from < names.length; from += SOME) {
    const some = names.slice(from, from + SOME);
    for (const parallel of values.parallel.split(",") as Parallel[]) {
      console.log(parallel);
      report(size, some, await runOnRanks(size, some, TIMEOUT_MS, { parallel, connections }));
    }
  }
}
console.log(failures === 0 ? "all right" : `${failures} failed`);
process.exitCode = failures === 0 ? 0 : 1;

function report(size: number, some: readonly string[], results: readonly RankResult[]): void {
  for (const name of some) {
    const own = results.filter((each) => each.name === name);
    const isRight = own.length === size && own.every((each) => each.isRight);
    const isRefused = own.some(({ error }) => error?.includes("--parallel tensor"));
    if (!isRight && !isRefused) failures += 1;
    const shares = own.map(({ share }) => (share ? `${Math.round(share.weights * 100)}%` : "-"));
    const [error = own.length < size ? "no answer" : ""] = own.flatMap((each) => each.error ?? []);
    console.log(
      `${size} ranks  ${isRight ? "right" : isRefused ? "refused" : "WRONG"}  ${name}  ${shares.join(" ")} ${error}`,
    );
  }
}
