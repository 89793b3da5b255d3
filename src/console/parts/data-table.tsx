// A generic table. A table wider than the page scrolls within itself, also by keyboard.
import type { Child, PropsWithChildren } from "hono/jsx/dom";

export type TableColumn<T> = {
  title: string;
  /** Aligns the column to the right. */
  isNumber?: boolean;
  /** Shows the title only to screen readers. */
  isTitleHidden?: boolean;
  cell(row: T): Child;
};

type Props<T> = {
  label: string;
  rows: readonly T[];
  columns: readonly TableColumn<T>[];
  keyOf(row: T): string;
};

export function DataTable<T>({ label, rows, columns, keyOf }: Props<T>) {
  const sideOf = ({ isNumber }: TableColumn<T>) => (isNumber ? "right" : "left");
  return (
    <Wide label={label}>
      <table>
        <thead>
          <tr>
            {columns.map((column) => (
              <th scope="col" class={sideOf(column)}>
                {column.isTitleHidden ? <span class="hidden">{column.title}</span> : column.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={keyOf(row)}>
              {columns.map((column) => (
                <td class={sideOf(column)}>{column.cell(row)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Wide>
  );
}

export function Wide({ label, children }: PropsWithChildren<{ label: string }>) {
  return (
    <section class="wide" aria-label={label} tabindex={0}>
      {children}
    </section>
  );
}
