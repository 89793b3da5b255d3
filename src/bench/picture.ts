// The chart of a mode's results: lines if there are several concurrency levels, otherwise bars.
import type { Mode } from "./modes.ts";
import { barPlot, linePlot, type Point } from "./plot.ts";
import type { Result } from "./results.ts";

/** Draws the chart. `system`: name of the measured system; `note`: its model and machine. */
export function pictureOf(
  { text, shows }: Mode,
  results: readonly Result[],
  system: string,
  note: string,
): string {
  const title = `${system}: ${text}`;
  const about = `${shows.label}; ${note}`;
  const pointOf = (result: Result): Point =>
    shows.key === "tokens_per_second"
      ? {
          y: result.tokens_per_second,
          min: result.tokens_per_second_min,
          max: result.tokens_per_second_max,
        }
      : { y: result[shows.key] };
  const levels = new Set(results.map(({ concurrency }) => concurrency));
  const isOneMode = new Set(results.map(({ mode }) => mode)).size === 1;
  if (levels.size > 1 && isOneMode) {
    const points = results.map((result) => ({ x: result.concurrency, ...pointOf(result) }));
    // The chart's only line needs no label, because the title names the system.
    const lines = [{ name: "", points }];
    return linePlot({ title, note: about, xLabel: "requests at once", lines });
  }
  const bars = results.map((result) => ({
    name: `${result.mode.replaceAll("_", " ")} (${result.concurrency})`,
    ...pointOf(result),
  }));
  return barPlot({ title, note: about, bars });
}
