// A server in another process, with keys for the attacker, a bystander and the owner.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { keyEntry } from "../../test/support/keys.ts";
import { type Ended, startMlxServe } from "../../test/support/serve-process.ts";

export const keys = { owner: "sk-owner", attacker: "sk-attacker", bystander: "sk-bystander" };

export type GuardedServer = {
  url: string;
  port: number;
  /** Resident memory of the process. */
  memory(): number;
  stop(): Promise<Ended>;
};

export async function startGuardedServer(flags: readonly string[]): Promise<GuardedServer> {
  const folder = mkdtempSync(join(tmpdir(), "mlx-serve-attack-"));
  const file = join(folder, "keys.json");
  const entries = [keyEntry("attacker", keys.attacker), keyEntry("bystander", keys.bystander)];
  writeFileSync(file, JSON.stringify({ keys: entries }), { mode: 0o600 });
  const all = ["--port=0", `--keys-file=${file}`, `--api-key=${keys.owner}`, ...flags];
  const server = startMlxServe(["serve", ...all], process.env);
  process.on("exit", () => server.kill("SIGKILL"));
  const [, url] = await server.says(/(http:\/\/127\.0\.0\.1:\d+)/);
  return {
    url: url!,
    port: Number(new URL(url!).port),
    memory() {
      const ps = Bun.spawnSync(["ps", "-o", "rss=", "-p", String(server.pid)]);
      return Number(ps.stdout.toString()) * 1024;
    },
    async stop() {
      server.kill("SIGTERM");
      const ended = await server.ended;
      rmSync(folder, { recursive: true, force: true });
      return ended;
    },
  };
}
