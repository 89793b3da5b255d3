// What may be wider than the page scrolls by itself, also by the keyboard.
import type { PropsWithChildren } from "hono/jsx/dom";

export function Wide({ label, children }: PropsWithChildren<{ label: string }>) {
  return (
    <section class="wide" aria-label={label} tabindex={0}>
      {children}
    </section>
  );
}
