// How far a benchmark is: a line of a terminal, which is gone at the end. Elsewhere nothing is shown.

export type BarOutput = {
  write(text: string): unknown;
  readonly isTTY?: boolean | undefined;
  readonly columns?: number | undefined;
};

const CELLS = 24;

export class ProgressBar {
  readonly #output: BarOutput;
  readonly #total: number;
  readonly #label: string;
  #done = 0;

  constructor(output: BarOutput, total: number, label: string) {
    this.#output = output;
    this.#total = total;
    this.#label = label;
    this.#draw();
  }

  tick(): void {
    this.#done += 1;
    this.#draw();
  }

  clear(): void {
    this.#write("");
  }

  #draw(): void {
    const full = Math.floor((CELLS * this.#done) / this.#total);
    const bar = `[${"#".repeat(full).padEnd(CELLS, "-")}]`;
    this.#write(`${bar}  ${this.#label}  ${this.#done} of ${this.#total} requests`);
  }

  #write(line: string): void {
    if (!this.#output.isTTY) return;
    this.#output.write(`\r${line.slice(0, (this.#output.columns || 80) - 1)}\x1b[K`);
  }
}
