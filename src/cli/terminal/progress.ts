// How far long work is: one line that is redrawn on a terminal, and elsewhere now and then a line of text, or with --json
// of JSON. It is on standard error, so that what a verb answers stays apart.
import type { EngineActivity } from "../../engine/protocol.ts";
import type { ProgressOutput } from "../../hub/progress.ts";
import type { Logger } from "../../log.ts";
import { printable } from "../../printable.ts";

/** As --json prints it. */
export type ProgressEvent = {
  readonly event: EngineActivity["kind"] | "pull" | "lines" | "checks" | "requests";
  readonly done: number;
  /** Where that is known. */
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
    // Whoever looks at a terminal is no program.
    this.#isJson = json && !output.isTTY;
    this.#nowMs = nowMs;
  }

  /** `text` is the same for people; `isDue`: elsewhere than on a terminal, it is a line now. */
  show(event: ProgressEvent, text: string, isDue = false): void {
    const now = this.#nowMs();
    const isFirst = event.event !== this.#event;
    this.#event = event.event;
    // Work that takes less than a while is no line of text.
    if (isFirst) this.#shownMs = this.#everyMs === LINE_EVERY_MS ? now : Number.NEGATIVE_INFINITY;
    const isLast = this.#isJson && event.done === event.total;
    const isNow = isLast || (isDue && !this.#output.isTTY);
    if (!isNow && now - this.#shownMs < this.#everyMs) return;
    this.#shownMs = now;
    if (this.#isJson) this.#output.write(`${JSON.stringify(event)}\n`);
    else if (!this.#output.isTTY) this.#output.write(`${printable(text)}\n`);
    else this.#draw(printable(text));
  }

  /** A line of its own, above. */
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
    this.#output.write(`\r${line.slice(0, (this.#output.columns || 80) - 1)}\x1b[K`);
    this.#isDrawn = true;
  }
}

/** Shows what an engine is at. */
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

/** The same as lines of a log for programs. */
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
