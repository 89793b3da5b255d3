// A canvas redrawn on each rendering, at the screen's resolution.
import { useLayoutEffect, useRef } from "hono/jsx/dom";

export type Draw = (context: CanvasRenderingContext2D, width: number, height: number) => void;

/** `label` describes the drawing for screen readers. */
export function Canvas({ height, label, draw }: { height: number; label: string; draw: Draw }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context) return;
    const { clientWidth: width } = element;
    const scale = devicePixelRatio;
    element.width = width * scale;
    element.height = height * scale;
    context.scale(scale, scale);
    draw(context, width, height);
  });
  return (
    <canvas
      ref={canvas}
      class="picture"
      style={{ height: `${height}px` }}
      role="img"
      aria-label={label}
    />
  );
}

/** Returns a request's colour, which is the same in all drawings. */
export function colourOf(id: string): string {
  let hash = 0;
  for (let i = 0; i < id.length; i++) hash = (hash * 31 + id.charCodeAt(i)) >>> 0;
  return `hsl(${(hash * 137.508) % 360} 62% 52%)`;
}

/** Returns the current value of a CSS custom property, which differs between light and dark mode. */
export function inkOf(context: CanvasRenderingContext2D, property: string): string {
  const { canvas } = context;
  canvas.style.color = `var(${property})`;
  return getComputedStyle(canvas).color;
}
