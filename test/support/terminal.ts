// `mlx-serve` on a terminal of its own.
import { join } from "node:path";

const main = join(import.meta.dir, "../../src/main.ts");

export const [ENTER, ESCAPE, UP, CTRL_C, CTRL_D] = ["\r", "\x1b", "\x1b[A", "\x03", "\x04"];

export type Terminal = {
  /** Waits until it is on the screen, behind what was seen before. */
  sees(pattern: RegExp): Promise<RegExpExecArray>;
  type(keys: string): void;
  kill(): void;
  ended: Promise<number>;
  /** All that was written. */
  readonly screen: string;
};

export function onTerminal(args: string[], env: Record<string, string | undefined>): Terminal {
  let [screen, seen] = ["", 0];
  let waiting: { pattern: RegExp; resolve: (found: RegExpExecArray) => void } | undefined;
  const look = () => {
    const found = waiting?.pattern.exec(screen.slice(seen));
    if (found) waiting?.resolve(found);
  };
  const decoder = new TextDecoder();
  const child = Bun.spawn([process.execPath, main, ...args], {
    env,
    terminal: {
      cols: 100,
      rows: 40,
      data: (_, bytes) => {
        screen += decoder.decode(bytes, { stream: true });
        look();
      },
    },
  });
  return {
    async sees(pattern) {
      const found = await new Promise<RegExpExecArray>((resolve, reject) => {
        waiting = { pattern, resolve };
        look();
        void child.exited.then(async () => {
          // What it wrote last may still be on its way.
          await Bun.sleep(500);
          reject(new Error(`it ended before ${pattern}:\n${screen.slice(seen)}`));
        });
      });
      seen += found.index + found[0].length;
      return found;
    },
    type: (keys) => void child.terminal!.write(keys),
    kill: () => child.kill("SIGTERM"),
    ended: child.exited,
    get screen() {
      return screen;
    },
  };
}
