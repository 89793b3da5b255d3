// A line for people beside what a verb answers: on standard error, where console.error prints red on a terminal.
import { printable } from "../../printable.ts";

export function tell(line: string): void {
  process.stderr.write(`${printable(line)}\n`);
}
