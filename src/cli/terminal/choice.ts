// A menu on a terminal, operated with the arrow keys or by number.
import { emitKeypressEvents, type Key } from "node:readline";
import type { ReadStream, WriteStream } from "node:tty";
import { printable } from "../../printable.ts";

/** Effect of a key in the menu: selects a line (`at`), confirms it (`taken`) or cancels (`left`). */
export type Move =
  | { readonly kind: "at"; readonly index: number }
  | { readonly kind: "taken"; readonly index: number }
  | { readonly kind: "left" };

export function moveOf({ name, ctrl, sequence = "" }: Key, index: number, count: number): Move {
  if (name === "up" || name === "k") return { kind: "at", index: (index + count - 1) % count };
  if (name === "down" || name === "j") return { kind: "at", index: (index + 1) % count };
  if (name === "return" || name === "enter") return { kind: "taken", index };
  if (name === "escape" || name === "q" || (ctrl && /^[cd]$/.test(name ?? ""))) {
    return { kind: "left" };
  }
  const number = Number(sequence);
  const isLine = /^[1-9]$/.test(sequence) && number <= count;
  return { kind: "at", index: isLine ? number - 1 : index };
}

/** Shows the menu; returns the index of the chosen line, or undefined if the user cancels. */
export function choose(
  lines: readonly string[],
  start: number,
  input: ReadStream = process.stdin,
  output: WriteStream = process.stderr,
): Promise<number | undefined> {
  const { promise, resolve } = Promise.withResolvers<number | undefined>();
  let index = start;
  const draw = () => {
    const width = (output.columns || 80) - 1;
    const rows = lines.map((line, i) =>
      `${i === index ? ">" : " "} ${i + 1}. ${printable(line)}`.slice(0, width),
    );
    output.write(rows.map((row) => `\r\x1b[2K${row}\n`).join(""));
  };
  const end = (chosen: number | undefined) => {
    input.off("keypress", press).off("end", hangUp);
    input.setRawMode(false);
    input.pause();
    resolve(chosen);
  };
  const hangUp = () => end(undefined);
  const press = (_: string | undefined, key: Key) => {
    const move = moveOf(key, index, lines.length);
    if (move.kind === "left") return end(undefined);
    if (move.kind === "taken") return end(move.index);
    index = move.index;
    output.write(`\x1b[${lines.length}A`);
    draw();
  };
  emitKeypressEvents(input);
  input.setRawMode(true);
  input.on("keypress", press).on("end", hangUp).resume();
  draw();
  return promise;
}
