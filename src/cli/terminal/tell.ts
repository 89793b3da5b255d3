// Prints a message for people on stderr; console.error would print red on a terminal.
import { printable } from "../../printable.ts";

export function tell(line: string): void {
  process.stderr.write(`${printable(line)}\n`);
}
