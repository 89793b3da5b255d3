// Runs launches in random orders, as Metal may (test/support/random-order.ts): `npm run -s order -- --seeds 200`.
// Fails if a case of parity gets other tokens with any seed, or if a removed dependency goes undetected. The tests do
// the same with fewer seeds.
import { findLibrary } from "../ffi/native.ts";
import { openMlx } from "../src/mlx/runtime.ts";
import {
  MOST_SEEDS,
  mutations,
  type OrderCase,
  OrderCases,
  orderCases,
  seedThatMisses,
} from "../test/support/order-cases.ts";
import { readFlags } from "./flags.ts";

const values = readFlags({ seeds: 200, first: 1, model: "", feature: "" });
const { first } = values;
const last = first + values.seeds - 1;
const isAsked = ({ model, feature }: OrderCase) =>
  (!values.model || model === values.model) && feature.includes(values.feature);

openMlx(findLibrary(), { device: "cpu" });
const cases = new OrderCases();
let failures = 0;

for (const each of orderCases.filter(isAsked)) {
  const wrong: number[] = [];
  let overtaken = 0;
  for (let seed = first; seed <= last; seed++) {
    const outcome = cases.run(each, seed);
    if (outcome.wrong > 0) wrong.push(seed);
    overtaken += outcome.order.overtaken;
  }
  failures += wrong.length;
  const said = wrong.length === 0 ? "same tokens" : `WRONG with seeds ${wrong.join(", ")}`;
  console.log(`${each.model}, ${each.feature}: ${said}, ${overtaken} launches out of order`);
}

for (const each of mutations.filter(({ of }) => isAsked(of))) {
  const seed = seedThatMisses(cases, each);
  if (seed === undefined) failures += 1;
  const said =
    seed === undefined ? `NOT detected within ${MOST_SEEDS} seeds` : `detected, seed ${seed}`;
  console.log(`${each.of.model} without ${JSON.stringify(each.mutation)}: ${said}`);
}

cases.free();
console.log(failures === 0 ? `seeds ${first} to ${last}: all passed` : `${failures} failed`);
process.exitCode = failures === 0 ? 0 : 1;
