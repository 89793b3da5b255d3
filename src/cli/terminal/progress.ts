// Shows progress on stderr: one redrawn line on a terminal; elsewhere occasional lines of text, or of JSON with --json.
// Stdout stays free for the verb's output.
import type { EngineActivity } from "../../engine/protocol.ts";
import type { ProgressOutput } from "../../hub/progress.ts";
import type { Logger } from "../../log.ts";
import { printable } from "../../printable.ts";

/** One line of the output with --json. */
export type ProgressEvent = {
  readonly event: EngineActivity["kind"] | "pull" | "lines" | "checks" | "requests";
  readonly done: number;
  /** Value of `done` at the end; absent if unknown. */
  readonly total?: number;
} & Readonly<Record<string, unknown>>;

export type ProgressOptions = {
  json?: boolean | undefined;
  output?: ProgressOutput;
  nowMs?: () => number;
};

const [REDRAW_MS, JSON_EVERY_MS, LINE_EVERY_MS] = [100, 1000, 10_000];

export class ProgressLine {
  readonly #output: ProgressOutput;
  readonly #isJson: boolean;
  readonly #nowMs: () => number;
  #event: ProgressEvent["event"] | undefined;
  #shownMs = Number.NEGATIVE_INFINITY;
  #isDrawn = false;

  constructor({
    json = false,
    output = process.stderr,
    nowMs = () => performance.now(),
  }: ProgressOptions = {}) {
    this.#output = output;
    // On a terminal, text is shown even with --json, because a person watches.
    this.#isJson = json && !output.isTTY;
    this.#nowMs = nowMs;
  }

  /** Shows progress. `text`: the event for people; `isDue`: prints a line at once, unless on a terminal. */
  show(event: ProgressEvent, text: string, isDue = false): void {
    const now = this.#nowMs();
    const isFirst = event.event !== this.#event;
    this.#event = event.event;
    // Lines of text start only after an interval, so that short work prints none; a bar or JSON starts at once.
    if (isFirst) this.#shownMs = this.#everyMs === LINE_EVERY_MS ? now : Number.NEGATIVE_INFINITY;
    const isLast = this.#isJson && event.done === event.total;
    const isNow = isLast || (isDue && !this.#output.isTTY);
    if (!isNow && now - this.#shownMs < this.#everyMs) return;
    this.#shownMs = now;
    if (this.#isJson) this.#output.write(`${JSON.stringify(event)}\n`);
    else if (!this.#output.isTTY) this.#output.write(`${printable(text)}\n`);
    else this.#draw(printable(text));
  }

  /** Prints a separate line above the progress. */
  tell(line: string): void {
    this.clear();
    this.#output.write(`${printable(line)}\n`);
  }

  clear(): void {
    if (this.#isDrawn) this.#output.write("\r\x1b[K");
    this.#isDrawn = false;
    this.#event = undefined;
  }

  get #everyMs(): number {
    if (this.#isJson) return JSON_EVERY_MS;
    return this.#output.isTTY ? REDRAW_MS : LINE_EVERY_MS;
  }

  #draw(line: string): void {
    this.#output.write(`\r${Bun.sliceAnsi(line, 0, (this.#output.columns || 80) - 1)}\x1b[K`);
    this.#isDrawn = true;
  }
}

/** Returns a function that shows the engine's activity. */
export function showActivity(options: ProgressOptions = {}) {
  const line = new ProgressLine(options);
  return (activity: EngineActivity | undefined): void => {
    if (!activity) line.clear();
    else {
      const { kind, ...rest } = activity;
      line.show({ event: kind, ...rest }, activityText(activity));
    }
  };
}

/** Returns a function that logs the engine's activity instead of showing it. */
export function logActivity(log: Logger, nowMs: () => number = () => performance.now()) {
  let since: number | undefined;
  return (activity: EngineActivity | undefined): void => {
    since = activity && (since ?? nowMs());
    if (!activity || nowMs() - since! < LINE_EVERY_MS) return;
    since = nowMs();
    log.info(activity, activityText(activity));
  };
}

export function activityText(activity: EngineActivity): string {
  switch (activity.kind) {
    case "load":
      return `loading ${activity.model} ${percent(activity)}`;
    case "warm_up":
      return `warming up ${activity.model} ${percent(activity)}`;
    case "compile":
      return `compiling kernels, once for this GPU: ${activity.done}`;
  }
}

function percent({ done, total }: { done: number; total: number }): string {
  return `${Math.floor((100 * done) / total)}%`;
}
