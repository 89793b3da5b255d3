// What a verb answers, on standard output. Texts from outside that must not begin a line of their own are
// escaped where they enter it.
import { printableLines } from "../../printable.ts";

export function print(text: string): void {
  console.log(printableLines(text));
}
