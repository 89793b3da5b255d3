// Histograms of latencies since the server's start.
import type { StateEvent } from "../../api/owner/engine.ts";
import { seconds, whole } from "../parts/numbers.ts";

type Latency = StateEvent["latency"][number];

const names: Readonly<Record<Latency["name"], string>> = {
  first_token: "Time to first token",
  inter_token: "Between tokens",
  queue: "In the queue",
  request: "Whole request",
};

export function Latencies({ latency }: { latency: readonly Latency[] }) {
  return (
    <div class="histograms">
      {latency.map((each) => (
        <Histogram {...each} />
      ))}
    </div>
  );
}

function Histogram({ name, limits, counts, count }: Latency) {
  const most = Math.max(1, ...counts);
  const limitOf = (i: number) => (i < limits.length ? seconds(limits[i]! * 1000) : "more");
  const middle = count === 0 ? "none yet" : `half within ${limitOf(medianOf(counts, count))}`;
  return (
    <figure class="histogram">
      <figcaption>
        {names[name]} <span class="note">{middle}</span>
      </figcaption>
      <div
        class="bars"
        role="img"
        aria-label={`${names[name]}: ${whole(count)} measured, ${middle}`}
      >
        {counts.map((each, i) => (
          <span
            style={{ height: `${(100 * each) / most}%` }}
            title={`up to ${limitOf(i)}: ${whole(each)}`}
          />
        ))}
      </div>
      <div class="ends note">
        <span>{limitOf(0)}</span>
        <span>{limitOf(counts.length - 2)}</span>
      </div>
    </figure>
  );
}

/** Returns the index of the bucket that contains the median. */
function medianOf(counts: readonly number[], count: number): number {
  let sum = 0;
  return counts.findIndex((each) => {
    sum += each;
    return sum * 2 >= count;
  });
}
