// Records a terminal session as docs/session.svg: `npm run -s docs:session`. Starts the server, sends requests with
// curl and the README's program, and animates their real output; only waits are shortened.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** A typed or printed piece and its time. */
export type Piece = { kind: "typed" | "printed"; text: string; atMs: number };

const COLUMNS = 104;
const [CELL, LINE, MARGIN] = [8, 19, 16];
const LONGEST_WAIT_MS = 800;

/** An animated picture of the pieces. */
export function drawSession(pieces: readonly Piece[]): string {
  const texts: string[] = [];
  let [row, column] = [0, 0];
  for (const { kind, text, atMs } of pieces) {
    for (const [index, line] of text.split("\n").entries()) {
      if (index > 0) [row, column] = [row + 1, 0];
      for (let rest = line; rest !== ""; ) {
        if (column === COLUMNS) [row, column] = [row + 1, 0];
        const part = rest.slice(0, COLUMNS - column);
        if (part.trim() !== "") texts.push(drawText(kind, part, row, column, atMs));
        column += part.length;
        rest = rest.slice(part.length);
      }
    }
  }
  const [width, height] = [COLUMNS * CELL + 2 * MARGIN, (row + 1) * LINE + 2 * MARGIN];
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" xml:space="preserve" width="${width}" height="${height}">
<style>
  text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #c9d1d9; animation: show 1ms backwards; }
  .typed { fill: #7ee787; }
  @keyframes show { from { opacity: 0; } }
  @media (prefers-reduced-motion) { text { animation: none; } }
</style>
<rect width="${width}" height="${height}" rx="8" fill="#0d1117"/>
${texts.join("\n")}
</svg>
`;
}

function drawText(kind: Piece["kind"], text: string, row: number, column: number, atMs: number) {
  const [x, y] = [MARGIN + column * CELL, MARGIN + (row + 0.75) * LINE];
  // Keeps columns aligned in every font.
  return `<text class="${kind}" x="${x}" y="${y}" textLength="${text.length * CELL}" style="animation-delay: ${Math.round(atMs)}ms">${Bun.escapeHTML(text)}</text>`;
}

/** Records pieces on a clock that shortens waits. */
class Recorder {
  readonly pieces: Piece[] = [];
  #clockMs = 0;
  #lastMs = performance.now();

  add(kind: Piece["kind"], text: string): void {
    const now = performance.now();
    this.#clockMs += Math.min(now - this.#lastMs, LONGEST_WAIT_MS);
    this.#lastMs = now;
    this.pieces.push({ kind, text, atMs: this.#clockMs });
  }

  async type(command: string): Promise<void> {
    // Leaves time to read the previous output.
    await Bun.sleep(LONGEST_WAIT_MS);
    this.add("typed", `$ ${command}\n`);
  }

  /** Records output until its end or until `until` matches. */
  async print(stream: ReadableStream<Uint8Array>, until?: RegExp): Promise<void> {
    const decoder = new TextDecoder();
    let all = "";
    // Closing the stream would end the server.
    for await (const bytes of stream.values({ preventCancel: true })) {
      const text = decoder.decode(bytes, { stream: true });
      this.add("printed", text);
      all += text;
      if (until?.test(all)) return;
    }
  }
}

async function record(): Promise<Piece[]> {
  const root = join(import.meta.dir, "..");
  const home = mkdtempSync(join(tmpdir(), "mlx-serve-session-"));
  const env = { ...process.env, XDG_CONFIG_HOME: home, MLX_SERVE_LOG_FORMAT: "pretty" };
  const options = { cwd: root, env, stdout: "pipe", stderr: "pipe" } as const;
  const recorder = new Recorder();
  await recorder.type("npm start");
  // Runs the command of the npm script directly, since npm does not forward signals.
  const server = Bun.spawn(["node", "scripts/launch.mjs", "src/main.ts"], options);
  try {
    await recorder.print(server.stderr, /-d '.*'\n\n/s);
    const [, url] = /(http:\/\/[\d.:]+)\/v1/.exec(
      recorder.pieces.map(({ text }) => text).join(""),
    )!;
    const question = `{"messages": [{"role": "user", "content": "Say hello!"}], "temperature": 0}`;
    const curl = `curl ${url}/v1/chat/completions -H "Content-Type: application/json" \\\n    -d '${question}'`;
    await recorder.type(curl);
    await recorder.print(Bun.spawn(["bash", "-c", curl], options).stdout);
    recorder.add("printed", "\n\n");
    const [, program] = /```js\n(.*?)```/s.exec(readFileSync(join(root, "README.md"), "utf8"))!;
    await recorder.type("node chat.mjs    # the program below: OpenAI's package, streaming");
    const node = ["node", "--input-type=module", "-"];
    await recorder.print(Bun.spawn(node, { ...options, stdin: new Blob([program!]) }).stdout);
    return recorder.pieces;
  } finally {
    server.kill("SIGTERM");
    await server.exited;
    rmSync(home, { recursive: true });
  }
}

if (import.meta.main) {
  const path = join(import.meta.dir, "..", "docs", "session.svg");
  writeFileSync(path, drawSession(await record()));
}
