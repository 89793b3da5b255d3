// Formats rows as aligned columns.
import { printable } from "../../printable.ts";

export function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const cells = [head, ...rows].map((row) => row.map(printable));
  const widths = head.map((_, column) =>
    Math.max(...cells.map((row) => Bun.stringWidth(row[column]!))),
  );
  return cells
    .map((row) =>
      row
        .map((cell, column) => cell + " ".repeat(widths[column]! - Bun.stringWidth(cell)))
        .join("  ")
        .trimEnd(),
    )
    .join("\n");
}
