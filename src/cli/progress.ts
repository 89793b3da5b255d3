// How far a model is loaded, on a terminal.
import { printable } from "../printable.ts";

export function showProgress(model: string, loadedBytes: number, totalBytes: number): void {
  if (!process.stderr.isTTY) return;
  const percent = Math.floor((100 * loadedBytes) / totalBytes);
  const end = percent === 100 ? "\r\x1b[K" : "";
  process.stderr.write(`\rloading ${printable(model)} ${percent}%${end}`);
}
