// Formats byte counts.

const units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];

export const totalBytes = (parts: readonly { bytes: number }[]) =>
  parts.reduce((sum, { bytes }) => sum + bytes, 0);

/** Formats a byte count with about three digits: 512 B, 4.7 GB, 138 MB. */
export function formatBytes(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${value.toFixed(unit > 0 && value < 99.95 ? 1 : 0)} ${units[unit]}`;
}
