// Divides every architecture, plain and quantized, among 2, 3 and 4 ranks on this machine. With batches, chunked
// prompts, preemption, prefix hits and several steps in flight, each must draw the tokens of mlx-lm. Tiny models with
// fewer layers than ranks get more layers and must draw the tokens of one rank. The default model is included.
//   npm run -s ranks -- [--ranks 2,3,4] [--parallel tensor,pipeline] [--connections ring] [names of tiny models, other models]
// The prefix gguf: selects a tiny model in a GGUF file, such as gguf:qwen3_5.
import type { Connections } from "../src/mlx/distributed.ts";
import type { Parallel } from "../src/model/weights/stages.ts";
import { runOnRanks } from "../test/support/rank-processes.ts";
import type { RankResult } from "../test/support/rank-program.ts";
import { tinyCases } from "../test/support/tiny-models.ts";
import { readFlags } from "./flags.ts";

/** Tiny models per start of the ranks, and their time limit. */
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
      const subjects = some.map((name) => `${parallel}:${name}` as const);
      const results = await runOnRanks(size, subjects, TIMEOUT_MS, connections);
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
  `${right + refused + wrong} cases: ${right} right, ${refused} refused because their layers cannot be divided, ${wrong} wrong`,
);
process.exitCode = wrong === 0 ? 0 : 1;

/** A case also requires preempted sequences and prefix hits. */
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
