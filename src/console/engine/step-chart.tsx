// Draws each step as a stacked column, the newest on the right. Decoded tokens, coloured by request, are at the
// bottom; prefill tokens are above them in paler colours.
import { useRef } from "hono/jsx/dom";
import { oneDigit, whole } from "../parts/numbers.ts";
import { Canvas, colourOf, inkOf } from "./canvas.tsx";
import type { Step } from "./engine-view.ts";

const [COLUMN, GAP, TOP] = [5, 1, 14];
const HEIGHT = 180;
/** Opacity of prefill, and of requests other than the followed one. */
const [PROMPT_ALPHA, OTHERS_ALPHA] = [0.45, 0.5];

export function StepChart({ steps, followed }: { steps: readonly Step[]; followed?: string }) {
  const strip = useRef<Strip>(null);
  const last = steps.at(-1);
  const label = last
    ? `Step ${last.step} of ${last.model}: ${last.promptTokens} prompt tokens and ${last.decodeTokens} decoded tokens of ${last.shares.length} requests in ${oneDigit(last.ms)} ms`
    : "No steps yet";
  return (
    <>
      <Canvas
        height={HEIGHT}
        label={label}
        draw={(context, width, height) => {
          strip.current ??= newStrip();
          draw(context, { width, height, strip: strip.current, steps, followed });
        }}
      />
      <p class="note">{label}</p>
    </>
  );
}

/** Canvas with the columns drawn so far: old columns are shifted instead of redrawn, because redrawing is slow. */
type Strip = {
  context: CanvasRenderingContext2D;
  /** Size, scale and followed request of the drawing (a change redraws all columns), and the newest step drawn. */
  drawnWith: string;
  newest: Step | undefined;
};

function newStrip(): Strip {
  const context = document.createElement("canvas").getContext("2d")!;
  return { context, drawnWith: "", newest: undefined };
}

type Drawing = {
  width: number;
  height: number;
  strip: Strip;
  steps: readonly Step[];
  followed: string | undefined;
};

function draw(context: CanvasRenderingContext2D, drawing: Drawing): void {
  const { width, height, strip, steps, followed } = drawing;
  if (width === 0) return;
  const scale = devicePixelRatio;
  // Whole pixels, so that shifted columns stay sharp.
  const column = Math.round(COLUMN * scale) / scale;
  const shown = steps.slice(-Math.floor(width / column));
  const most = Math.max(1, ...shown.map((step) => step.promptTokens + step.decodeTokens));
  const drawnWith = [width, height, scale, most, followed].join();
  const known = drawnWith === strip.drawnWith && strip.newest ? shown.indexOf(strip.newest) : -1;
  const added = shown.slice(known + 1);
  const { canvas } = strip.context;
  if (known < 0) {
    canvas.width = width * scale;
    canvas.height = height * scale;
  } else if (added.length > 0) {
    strip.context.globalCompositeOperation = "copy";
    strip.context.setTransform(1, 0, 0, 1, 0, 0);
    strip.context.drawImage(canvas, -Math.round(added.length * column * scale), 0);
    strip.context.globalCompositeOperation = "source-over";
  }
  strip.context.setTransform(scale, 0, 0, scale, 0, 0);
  const unit = (height - TOP) / most;
  added.forEach((step, i) => {
    const x = width - (added.length - i) * column;
    drawColumn(strip.context, step, { x, bottom: height, unit, followed });
  });
  Object.assign(strip, { drawnWith, newest: shown.at(-1) });
  context.drawImage(canvas, 0, 0, width, height);
  context.fillStyle = inkOf(context, "--dim");
  context.font = "11px system-ui, sans-serif";
  context.fillText(`${whole(most)} tokens`, 0, 10);
}

type Place = { x: number; bottom: number; unit: number; followed: string | undefined };

function drawColumn(context: CanvasRenderingContext2D, step: Step, place: Place): void {
  const { x, bottom, unit, followed } = place;
  let y = bottom;
  const bar = (id: string, tokens: number, alpha: number) => {
    if (tokens === 0) return;
    const isOther = followed !== undefined && id !== followed;
    context.globalAlpha = isOther ? alpha * OTHERS_ALPHA : alpha;
    context.fillStyle = colourOf(id);
    y -= tokens * unit;
    context.fillRect(x, y, COLUMN - GAP, Math.max(tokens * unit - 0.5, 0.5));
  };
  for (const { id, decodeTokens } of step.shares) bar(id, decodeTokens, 1);
  for (const { id, promptTokens } of step.shares) bar(id, promptTokens, PROMPT_ALPHA);
  context.globalAlpha = 1;
}
