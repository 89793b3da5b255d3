// How far a model is loaded, on a terminal.

export function showProgress(model: string, loadedBytes: number, totalBytes: number): void {
  if (!process.stderr.isTTY) return;
  const percent = Math.floor((100 * loadedBytes) / totalBytes);
  process.stderr.write(`\rloading ${model} ${percent}%${percent === 100 ? "\r\x1b[K" : ""}`);
}
