// The blocks of a model's KV cache as a grid of squares, in the order of the pool.
import type { StateEvent } from "../../api/owner/engine.ts";
import { whole } from "../parts/numbers.ts";
import { Canvas, inkOf } from "./canvas.tsx";

type BlockMap = StateEvent["maps"][number];
type Blocks = StateEvent["models"][number]["blocks"];

const states = [
  { letter: "h", name: "held", ink: "--accent" },
  { letter: "s", name: "shared", ink: "--good" },
  { letter: "c", name: "cached", ink: "--cached" },
  { letter: ".", name: "free", ink: "--sunken" },
] as const;

const [SMALL, LARGE, GAP] = [5, 11, 1];
/** Maximum number of cells for which large squares are drawn. */
const FEW = 1200;

export function BlockMapView({ map, blocks }: { map: BlockMap; blocks: Blocks }) {
  const size = map.cells.length <= FEW ? LARGE : SMALL;
  const lit = new Set(map.followed.flatMap(({ cells }) => cells));
  const label = `Blocks of ${map.model}: ${states.map(({ name }) => `${whole(blocks[name])} ${name}`).join(", ")}`;
  return (
    <>
      <Legend blocks={blocks} lit={lit.size} />
      <SizedMap map={map} size={size} lit={lit} label={label} />
      {map.blocks_per_cell > 1 && (
        <p class="note">
          A square stands for {map.blocks_per_cell} blocks and shows the most used of them.
        </p>
      )}
    </>
  );
}

function Legend({ blocks, lit }: { blocks: Blocks; lit: number }) {
  return (
    <ul class="legend">
      {states.map(({ name }) => (
        <li>
          <span class={`swatch ${name}`} /> {whole(blocks[name])} {name}
        </li>
      ))}
      {lit > 0 && (
        <li>
          <span class="swatch lit" /> of the followed request
        </li>
      )}
    </ul>
  );
}

type MapProps = { map: BlockMap; size: number; lit: ReadonlySet<number>; label: string };

function SizedMap({ map, size, lit, label }: MapProps) {
  const pitch = size + GAP;
  // Estimates the height for a card 520 px wide; the drawing adapts its columns to the actual width.
  const height = Math.min(260, Math.ceil(map.cells.length / Math.floor(520 / pitch)) * pitch);
  return (
    <Canvas
      height={Math.max(height, pitch)}
      label={label}
      draw={(context, width, tall) => {
        const columns = Math.max(
          Math.floor(width / pitch),
          Math.ceil((map.cells.length * pitch) / tall),
        );
        const step = Math.min(pitch, width / columns);
        const inks = Object.fromEntries(
          states.map(({ letter, ink }) => [letter, inkOf(context, ink)]),
        );
        const litInk = inkOf(context, "--warm");
        for (let cell = 0; cell < map.cells.length; cell++) {
          context.fillStyle = lit.has(cell) ? litInk : inks[map.cells[cell]!]!;
          const [x, y] = [(cell % columns) * step, Math.floor(cell / columns) * step];
          context.fillRect(x, y, Math.max(step - GAP, 0.5), Math.max(step - GAP, 0.5));
        }
      }}
    />
  );
}
