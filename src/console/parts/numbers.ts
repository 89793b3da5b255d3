// Formats numbers for people.

export const oneDigit = (value: number) => value.toFixed(1);

/** Formats a duration: 340 ms, 1.2 s, 3 min 20 s. */
export function seconds(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const all = Math.round(ms / 1000);
  return `${Math.floor(all / 60)} min ${all % 60} s`;
}

/** Formats a size in powers of 1000: 1.2 GB. */
export function bytes(count: number): string {
  const units = ["B", "KB", "MB", "GB", "TB"];
  const power = Math.min(Math.floor(Math.log10(Math.max(count, 1)) / 3), units.length - 1);
  const value = count / 1000 ** power;
  return `${power === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${units[power]}`;
}

/** Formats a count briefly: 134.5 M, 7.2 B. */
export const count = (value: number) =>
  value >= 1e9 ? `${(value / 1e9).toFixed(1)} B` : `${(value / 1e6).toFixed(1)} M`;

/** Formats a count in full: 12,345. */
export const whole = (count: number) => Math.round(count).toLocaleString("en");

export const percent = (part: number, all: number) =>
  all === 0 ? "0%" : `${Math.round((100 * part) / all)}%`;
