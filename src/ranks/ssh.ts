// A rank of another host that the server starts over ssh. It is told on its standard input what it is to join, and ends
// when that is closed: with this process, or with the connection.
import { z } from "zod";

/** What `mlx-serve join --stdin` reads: a line of JSON. */
export const Invitation = z.object({
  addresses: z.array(z.string()).min(2),
  rank: z.int().min(1),
  port: z.int(),
  secret: z.string(),
});
export type Invitation = z.infer<typeof Invitation>;

/** A login shell knows the user's PATH. */
const COMMAND = `exec "\${SHELL:-/bin/sh}" -lc "exec mlx-serve join --stdin"`;

const OPTIONS = ["BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5"];

const AGAIN_MS = 2000;

export class SshRank {
  readonly #host: string;
  readonly #invitation: Invitation;
  readonly #onFailure: (reason: string) => void;
  #process: Bun.Subprocess<"pipe", "ignore", "pipe"> | undefined;
  #isStopped = false;

  /** It is started again when it ends, after `onFailure` was told why. */
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

  /** Returns the last line that it or the rank said. */
  async #run(): Promise<string> {
    const options = OPTIONS.flatMap((each) => ["-o", each]);
    try {
      const child = Bun.spawn(["ssh", ...options, this.#host, COMMAND], {
        stdin: "pipe",
        stdout: "ignore",
        stderr: "pipe",
        // A terminal signals all of its processes; the rank is to end when the server has drained.
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
      return last || `it has ended with code ${code}`;
    } catch (error) {
      return error instanceof Error ? error.message : String(error);
    }
  }
}
