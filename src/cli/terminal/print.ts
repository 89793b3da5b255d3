// Prints the output of a verb on stdout. The caller escapes texts from outside that must not contain line breaks.
import { printableLines } from "../../printable.ts";

export function print(text: string): void {
  console.log(printableLines(text));
}
