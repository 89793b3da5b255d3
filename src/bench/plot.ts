// Charts as SVG text: lines over concurrency, or bars. Colours follow the reader's light or dark scheme, and the
// background is painted, so that charts are legible on any page.

export type Point = { y: number; min?: number | undefined; max?: number | undefined };
export type Line = { name: string; points: readonly (Point & { x: number })[] };
export type Bar = Point & { name: string };

export type LinePlot = {
  title: string;
  /** Text below the title: the figure, model and machine. */
  note: string;
  xLabel: string;
  lines: readonly Line[];
};
export type BarPlot = { title: string; note: string; bars: readonly Bar[] };

const WIDTH = 760;
const TOP = 76;
const light = ["#0b63ce", "#c2410c", "#15803d", "#7e22ce", "#a16207", "#be185d"];
const dark = ["#6cb2ff", "#ff9a57", "#5fd38a", "#c89bff", "#e5c04b", "#ff8fc0"];

const style = `<style>
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; font-size: 13px }
.title { font-size: 17px; font-weight: 600 }
.name { font-weight: 600 }
${scheme({ ground: "#ffffff", ink: "#1f2328", faint: "#59636e", grid: "#d8dee4" }, light)}
@media (prefers-color-scheme: dark) {
${scheme({ ground: "#151b23", ink: "#f0f6fc", faint: "#9198a1", grid: "#2f3742" }, dark)}
}
</style>`;

type Shades = Record<"ground" | "ink" | "faint" | "grid", string>;

function scheme({ ground, ink, faint, grid }: Shades, colours: readonly string[]): string {
  return [
    `.ground { fill: ${ground} }`,
    `text { fill: ${ink} }`,
    `.faint { fill: ${faint} }`,
    `.grid { stroke: ${grid} }`,
    `.spread { stroke: ${ink} }`,
    ...colours.map((colour, i) => `.fill${i} { fill: ${colour} } .line${i} { stroke: ${colour} }`),
  ].join("\n");
}

export function linePlot({ title, note, xLabel, lines }: LinePlot): string {
  const [height, left, right] = [430, 64, WIDTH - 150];
  const bottom = height - 58;
  const points = lines.flatMap((line) => line.points);
  const xs = [...new Set(points.map(({ x }) => x))].sort((a, b) => a - b);
  const ticks = ticksUpTo(highestOf(points));
  const top = ticks.at(-1)!;
  // Concurrency levels double, so they are spaced evenly.
  const xOf = (x: number) =>
    xs.length > 1 ? left + 20 + (xs.indexOf(x) * (right - left - 40)) / (xs.length - 1) : left + 20;
  const yOf = (y: number) => bottom - (y / top) * (bottom - TOP);
  const grid = ticks.flatMap((tick) => [
    `<line class="grid" x1="${left}" x2="${right}" y1="${at(yOf(tick))}" y2="${at(yOf(tick))}"/>`,
    text(left - 10, yOf(tick) + 4.5, String(tick), 'class="faint" text-anchor="end"'),
  ]);
  const columns = xs.map((x) =>
    text(xOf(x), bottom + 22, String(x), 'class="faint" text-anchor="middle"'),
  );
  const drawn = lines.flatMap(({ points: own }, i) => [
    `<polyline class="line${i}" fill="none" stroke-width="2.5" stroke-linejoin="round" points="${own.map(({ x, y }) => `${at(xOf(x))},${at(yOf(y))}`).join(" ")}"/>`,
    ...own.map(({ x, y, min = y, max = y }) => {
      return `<line class="line${i}" stroke-width="1.5" opacity="0.6" x1="${at(xOf(x))}" x2="${at(xOf(x))}" y1="${at(yOf(min))}" y2="${at(yOf(max))}"/>`;
    }),
    ...own.map(
      ({ x, y }) => `<circle class="fill${i}" cx="${at(xOf(x))}" cy="${at(yOf(y))}" r="4"/>`,
    ),
  ]);
  const ends = lines.map(({ points: own }) => yOf(own.at(-1)!.y));
  const names = spread(ends, 18).map((y, i) => {
    const { name, points: own } = lines[i]!;
    const label = `${name}  ${figure(own.at(-1)!.y)}`.trim();
    return text(right + 4, y + 4.5, label, `class="name fill${i}"`);
  });
  const axis = text((left + right) / 2, height - 14, xLabel, 'class="faint" text-anchor="middle"');
  return svg(height, title, note, [...grid, ...columns, axis, ...drawn, ...names]);
}

export function barPlot({ title, note, bars }: BarPlot): string {
  const [left, right, row] = [170, WIDTH - 90, 44];
  const height = TOP + bars.length * row + 16;
  const top = highestOf(bars);
  const xOf = (value: number) => left + (value / top) * (right - left);
  const drawn = bars.flatMap(({ name, y, min = y, max = y }, i) => {
    const middle = TOP + i * row + row / 2;
    return [
      text(left - 12, middle + 4.5, name, 'text-anchor="end"'),
      `<rect class="fill${i % light.length}" x="${left}" y="${at(middle - 13)}" width="${at(Math.max(xOf(y) - left, 1))}" height="26" rx="3"/>`,
      `<line class="spread" stroke-width="2" x1="${at(xOf(min))}" x2="${at(xOf(max))}" y1="${middle}" y2="${middle}"/>`,
      text(xOf(max) + 10, middle + 4.5, figure(y), 'class="name"'),
    ];
  });
  return svg(height, title, note, drawn);
}

function svg(height: number, title: string, note: string, parts: readonly string[]): string {
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" role="img">`,
    `<title>${Bun.escapeHTML(title)}</title>`,
    style,
    `<rect class="ground" width="${WIDTH}" height="${height}" rx="8"/>`,
    text(24, 34, title, 'class="title"'),
    text(24, 54, note, 'class="faint"'),
    ...parts,
    "</svg>\n",
  ].join("\n");
}

function highestOf(points: readonly Point[]): number {
  return Math.max(1e-9, ...points.map(({ y, max = y }) => max));
}

/** Returns round numbers from 0 to at least the highest value. */
function ticksUpTo(highest: number): number[] {
  const rough = highest / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough)!;
  const count = Math.ceil(highest / step);
  return Array.from({ length: count + 1 }, (_, i) => Number((i * step).toPrecision(6)));
}

/** Moves positions down as little as possible, so that they are at least `gap` apart. */
function spread(places: readonly number[], gap: number): number[] {
  const order = places.map((place, i) => ({ place, i })).sort((a, b) => a.place - b.place);
  const out: number[] = [];
  let last = Number.NEGATIVE_INFINITY;
  for (const { place, i } of order) {
    last = Math.max(place, last + gap);
    out[i] = last;
  }
  return out;
}

function text(x: number, y: number, content: string, attributes = ""): string {
  return `<text x="${at(x)}" y="${at(y)}" ${attributes}>${Bun.escapeHTML(content)}</text>`;
}

const at = (value: number) => Number(value.toFixed(1));

/** Formats a number with about three significant digits. */
function figure(value: number): string {
  return value >= 100 ? value.toFixed(0) : Number(value.toPrecision(3)).toString();
}
