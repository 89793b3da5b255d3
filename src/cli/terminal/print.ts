// Prints the output of a verb on stdout. Texts from outside that must not start a line are escaped by the caller.
import { printableLines } from "../../printable.ts";

export function print(text: string): void {
  console.log(printableLines(text));
}
