// Starts a rank on another host over ssh. The rank reads its invitation from standard input. It ends when the input
// closes, because this process or the connection has ended.
import { z } from "zod";

/** The input of `mlx-serve join --stdin`: one line of JSON. */
export const Invitation = z.object({
  addresses: z.array(z.string()).min(2),
  rank: z.int().min(1),
  port: z.int(),
  secret: z.string(),
});
export type Invitation = z.infer<typeof Invitation>;

/** Uses a login shell, for the user's PATH. */
const COMMAND = `exec "\${SHELL:-/bin/sh}" -lc "exec mlx-serve join --stdin"`;

const OPTIONS = ["BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5"];

const AGAIN_MS = 2000;

export class SshRank {
  readonly #host: string;
  readonly #invitation: Invitation;
  readonly #onFailure: (reason: string) => void;
  #process: Bun.Subprocess<"pipe", "ignore", "pipe"> | undefined;
  #isStopped = false;

  /** Starts the rank, and restarts it whenever it ends, after a call of `onFailure` with the reason. */
  constructor(host: string, invitation: Invitation, onFailure: (reason: string) => void) {
    this.#host = host;
    this.#invitation = invitation;
    this.#onFailure = onFailure;
    void this.#keep();
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#process?.stdin.end();
    this.#process?.kill("SIGTERM");
    await this.#process?.exited;
  }

  async #keep(): Promise<void> {
    while (!this.#isStopped) {
      const reason = await this.#run();
      if (this.#isStopped) return;
      this.#onFailure(`ssh ${this.#host}: ${reason}`);
      await Bun.sleep(AGAIN_MS);
    }
  }

  /** Runs the rank until it ends, and returns the last line of its standard error. */
  async #run(): Promise<string> {
    const options = OPTIONS.flatMap((each) => ["-o", each]);
    try {
      const child = Bun.spawn(["ssh", ...options, this.#host, COMMAND], {
        stdin: "pipe",
        stdout: "ignore",
        stderr: "pipe",
        // Detached, so that Ctrl+C in the terminal does not end the rank before the server has drained.
        detached: true,
      });
      this.#process = child;
      child.stdin.write(`${JSON.stringify(this.#invitation)}\n`);
      child.stdin.flush();
      let last = "";
      for await (const text of child.stderr.pipeThrough(new TextDecoderStream())) {
        process.stderr.write(text);
        last = text.trim().split("\n").at(-1) || last;
      }
      const code = await child.exited;
      return last || `exited with code ${code}`;
    } catch (error) {
      return error instanceof Error ? error.message : String(error);
    }
  }
}
