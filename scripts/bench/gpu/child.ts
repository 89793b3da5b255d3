// A child process that answers each line of JSON with a line of JSON, after one line when it is ready.
import { linesOf } from "../../../src/lines.ts";

export type Child = {
  /** Its first line. */
  ready: { version?: string };
  ask<T>(question: object): Promise<T>;
  stop(): Promise<void>;
};

export async function startChild(command: string[], env: NodeJS.ProcessEnv = {}): Promise<Child> {
  const child = Bun.spawn(command, {
    stdin: "pipe",
    stdout: "pipe",
    stderr: "inherit",
    env: { ...process.env, ...env },
  });
  const lines = linesOf(child.stdout);
  const read = async () => {
    const { value, done } = await lines.next();
    if (done) throw new Error(`${command.join(" ")} has ended with ${await child.exited}`);
    return JSON.parse(value);
  };
  const ready = await read();
  return {
    ready,
    async ask(question) {
      child.stdin.write(`${JSON.stringify(question)}\n`);
      await child.stdin.flush();
      return await read();
    },
    async stop() {
      await child.stdin.end();
      await child.exited;
    },
  };
}
