// Shows the progress of a pull: one line redrawn in place on a terminal, occasional lines elsewhere.
import { formatBytes } from "./bytes.ts";

export type ProgressOutput = {
  write(text: string): unknown;
  readonly isTTY?: boolean | undefined;
  readonly columns?: number | undefined;
};

const WINDOW_MS = 5_000;
const REDRAW_MS = 100;
const LINE_EVERY_MS = 15_000;
const BAR_CELLS = 24;

type Sample = { readonly atMs: number; readonly bytes: number };

/** Measures bytes per second over the last seconds, so that the remaining time follows the connection's speed. */
export class RateMeter {
  #samples: Sample[] = [];

  add(bytes: number, atMs: number): void {
    this.#samples.push({ atMs, bytes });
    // Keeps one sample from before the window, so that the samples span the whole window.
    const first = this.#samples.findLastIndex((sample) => sample.atMs <= atMs - WINDOW_MS);
    if (first > 0) this.#samples.splice(0, first);
  }

  get bytesPerSecond(): number | undefined {
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    if (!first || !last || last.atMs === first.atMs) return undefined;
    return Math.max(0, (last.bytes - first.bytes) / ((last.atMs - first.atMs) / 1000));
  }
}

export class Progress {
  readonly #output: ProgressOutput;
  readonly #nowMs: () => number;
  readonly #rate = new RateMeter();
  #drawnMs = Number.NEGATIVE_INFINITY;
  #sampledMs = Number.NEGATIVE_INFINITY;

  constructor(output: ProgressOutput, nowMs: () => number = () => performance.now()) {
    this.#output = output;
    this.#nowMs = nowMs;
  }

  update(doneBytes: number, totalBytes: number): void {
    const now = this.#nowMs();
    if (now - this.#sampledMs >= REDRAW_MS) {
      this.#rate.add(doneBytes, now);
      this.#sampledMs = now;
    }
    if (now - this.#drawnMs < (this.#output.isTTY ? REDRAW_MS : LINE_EVERY_MS)) return;
    this.#drawnMs = now;
    this.#draw(doneBytes, totalBytes);
  }

  /** Shows the final state, regardless of the redraw interval. */
  finish(doneBytes: number, totalBytes: number): void {
    this.#rate.add(doneBytes, this.#nowMs());
    this.#draw(doneBytes, totalBytes);
    if (this.#output.isTTY) this.#output.write("\n");
  }

  /** Prints a line above the bar. */
  say(line: string): void {
    this.#output.write(this.#output.isTTY ? `\r\x1b[K${line}\n` : `${line}\n`);
    this.#drawnMs = Number.NEGATIVE_INFINITY;
  }

  #draw(doneBytes: number, totalBytes: number): void {
    const line = progressLine(doneBytes, totalBytes, this.#rate.bytesPerSecond);
    if (!this.#output.isTTY) this.#output.write(`${line}\n`);
    else {
      const width = (this.#output.columns || 80) - 1;
      const bar = barOf(doneBytes, totalBytes);
      const whole = line.length + bar.length + 2 <= width ? `${bar}  ${line}` : line;
      this.#output.write(`\r${whole.slice(0, width)}\x1b[K`);
    }
  }
}

/** Formats progress, such as ` 43%  1.2 GB of 2.8 GB  45.3 MB/s  35 s left`. */
export function progressLine(done: number, total: number, bytesPerSecond?: number): string {
  const percent = total > 0 ? Math.floor((100 * done) / total) : 100;
  const parts = [`${percent}%`.padStart(4), `${formatBytes(done)} of ${formatBytes(total)}`];
  if (bytesPerSecond !== undefined) parts.push(`${formatBytes(bytesPerSecond)}/s`);
  if (bytesPerSecond && done < total) parts.push(`${timeOf((total - done) / bytesPerSecond)} left`);
  return parts.join("  ");
}

/** Returns a progress bar, such as `[######----]`. */
export function barOf(done: number, total: number): string {
  const full = total > 0 ? Math.floor((BAR_CELLS * done) / total) : BAR_CELLS;
  return `[${"#".repeat(full).padEnd(BAR_CELLS, "-")}]`;
}

function timeOf(seconds: number): string {
  const whole = Math.ceil(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}
