// Every step as a column, the newest to the right: what each request computes in it, decoded tokens below in full
// colour, tokens of prompts above in a paler one.
import { oneDigit, whole } from "../numbers.ts";
import { Canvas, colourOf, inkOf } from "./canvas.tsx";
import type { Step } from "./engine-view.ts";

const [COLUMN, GAP, TOP] = [5, 1, 14];
const HEIGHT = 180;
/** A prompt's share of a column, of a request that is not followed. */
const [PROMPT_ALPHA, OTHERS_ALPHA] = [0.45, 0.5];

export function StepChart({ steps, followed }: { steps: readonly Step[]; followed?: string }) {
  const last = steps.at(-1);
  const label = last
    ? `Step ${last.step} of ${last.model}: ${last.promptTokens} prompt tokens and ${last.decodeTokens} decoded tokens of ${last.shares.length} requests in ${oneDigit(last.ms)} ms`
    : "No steps yet";
  return (
    <>
      <Canvas
        height={HEIGHT}
        label={label}
        draw={(context, width, height) => draw(context, width, height, steps, followed)}
      />
      <p class="note">{label}</p>
    </>
  );
}

function draw(
  context: CanvasRenderingContext2D,
  width: number,
  height: number,
  steps: readonly Step[],
  followed: string | undefined,
): void {
  const shown = steps.slice(-Math.floor(width / COLUMN));
  const most = Math.max(1, ...shown.map((step) => step.promptTokens + step.decodeTokens));
  const unit = (height - TOP) / most;
  context.fillStyle = inkOf(context, "--dim");
  context.font = "11px system-ui, sans-serif";
  context.fillText(`${whole(most)} tokens`, 0, 10);
  shown.forEach((step, i) => {
    const x = width - (shown.length - i) * COLUMN;
    let y = height;
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
  });
  context.globalAlpha = 1;
}
