// Every architecture, plain and quantized, divided among 2, 3 and 4 ranks on this machine: in batches, with prompts that
// are chunked, sequences that are preempted and prefixes from the cache, each must draw what mlx-lm drew. Tiny models with
// fewer layers than ranks get more of them, and must draw what one rank does. Several steps are under way, as in the
// server. The default model is among them.
//   npm run -s ranks -- [--ranks 2,3,4] [--parallel tensor,pipeline] [--connections ring] [names of tiny models, other models]
// A name that begins with gguf: is that of a tiny model in a GGUF file, as gguf:qwen3_5.
import type { Connections } from "../src/mlx/distributed.ts";
import type { Parallel } from "../src/model/weights/weights.ts";
import { runOnRanks } from "../test/support/rank-processes.ts";
import type { RankResult } from "../test/support/rank-program.ts";
import { tinyCases } from "../test/support/tiny-models.ts";
import { readFlags } from "./flags.ts";

/** Tiny models that one start of the ranks runs, and how long they may take. */
const SOME = 40;
const TIMEOUT_MS = 300_000;

const values = readFlags(
  { ranks: "2,3,4", parallel: "tensor,pipeline", connections: "shared" },
  true,
);
const { positionals } = values;
const connections = values.connections as Connections;
const names =
  positionals.length > 0 ? positionals : [...tinyCases.map(({ name }) => name), "default"];

const outcomes = { right: 0, refused: 0, WRONG: 0 };
for (const size of values.ranks.split(",").map(Number)) {
  for (let from = 0; from < names.length; from += SOME) {
    const some = names.slice(from, from + SOME);
    for (const parallel of values.parallel.split(",") as Parallel[]) {
      const results = await runOnRanks(size, some, TIMEOUT_MS, { parallel, connections });
      for (const name of some)
        report(
          { size, parallel, name },
          results.filter((each) => each.name === name),
        );
    }
  }
}
const { right, refused, WRONG: wrong } = outcomes;
console.log(
  `${right + refused + wrong} cases: ${right} right, ${refused} refused as their layers cannot be divided, ${wrong} wrong`,
);
process.exitCode = wrong === 0 ? 0 : 1;

/** Right are those whose sequences were preempted and had a prefix from the cache, too. */
function outcomeOf(size: number, own: readonly RankResult[]): keyof typeof outcomes {
  if (own.some(({ error }) => error?.includes("--parallel tensor"))) return "refused";
  const isRight = (each: RankResult) =>
    each.isRight && each.preemptions > 0 && each.cachedTokens > 0 && each.inFlight > 1;
  return own.length === size && own.every(isRight) ? "right" : "WRONG";
}

type Case = { size: number; parallel: Parallel; name: string };

function report({ size, parallel, name }: Case, own: readonly RankResult[]): void {
  const outcome = outcomeOf(size, own);
  outcomes[outcome] += 1;
  const shares = own.map(({ share }) => (share ? `${Math.round(share.weights * 100)}%` : "-"));
  const [error = own.length < size ? "no answer" : ""] = own.flatMap((each) => each.error ?? []);
  const { preemptions, cachedTokens, inFlight, layers } = own[0] ?? {};
  const deeper = layers && layers.all > layers.own ? `${layers.all} layers` : "";
  const met = `${inFlight} steps at once, ${preemptions} preempted, ${cachedTokens} cached`;
  const said = [outcome, `${size} ranks`, parallel, name, shares.join(" "), deeper];
  console.log([...said, error || met].filter(Boolean).join("  "));
}
