// A server with a file of hosts, and a rank that joins it, both on this machine.
import { afterAll, afterEach, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { writeChatModel } from "../support/chat-model.ts";
import { makeHome, type Running, startMlxServe } from "../support/serve-process.ts";

const home = makeHome();
const folder = mkdtempSync(join(tmpdir(), "mlx-serve-hosts-"));
afterAll(() => {
  home.remove();
  rmSync(folder, { recursive: true });
});

const hosts = join(folder, "hosts.json");
writeFileSync(hosts, JSON.stringify([{ ips: ["127.0.0.1"] }, { ips: ["127.0.0.1"] }]));

const started: Running[] = [];
afterEach(async () => {
  for (const each of started) each.kill("SIGTERM");
  await Promise.all(started.splice(0).map(({ ended }) => ended));
}, 30_000);

/** Two ports follow it. */
const freePort = () => String(20_000 + Math.floor(Math.random() * 20_000));

function start(args: string[], secret: string): Running {
  const running = startMlxServe(args, { ...home.env, MLX_SERVE_RANK_SECRET: secret });
  started.push(running);
  return running;
}

const SECRET = "a secret of this test";

function startServer(port: string): Running {
  const args = ["--hosts", hosts, "--rank-port", port, "--port", "0", "--log-format", "json"];
  return start(["serve", home.model, ...args], SECRET);
}

function startRank(port: string, secret: string, model: string[] = []): Running {
  return start(["join", ...model, "--hosts", hosts, "--rank", "1", "--rank-port", port], secret);
}

test("a rank that joins computes with the server, which drains and ends by itself", async () => {
  const port = freePort();
  const server = startServer(port);
  const rank = startRank(port, SECRET);
  const [, url] = await server.says(/"url":"([^"]+)","model":"tiny"/);
  await server.says(/"ranks":2,"by":"ring","msg":"the ranks are connected"/);
  const response = await fetch(`${url}/v1/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ prompt: "Hello", max_tokens: 8, temperature: 0 }),
  });
  expect(response.status).toBe(200);
  const ps = await startMlxServe(["ps", "--url", url!], home.env).ended;
  expect(ps.stdout).toMatch(
    /RANK +HOST +PROCESS +STATE\n0 +127\.0\.0\.1 +\d+ +ready\n1 +127\.0\.0\.1 +- +ready/,
  );
  expect(ps.stdout).toMatch(/rank 0 sent .* per token; .* s in collectives/);
  server.kill("SIGTERM");
  expect((await server.ended).exitCode).toBe(0);
  await rank.says(/rank 1: the connection was closed/);
}, 60_000);

function isAlive({ pid }: { pid: number }): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

test("ranks end with a server that is killed", async () => {
  const args = ["--ranks", "2", "--port", "0", "--log-format", "json"];
  const server = start(["serve", home.model, ...args], SECRET);
  const [, url] = await server.says(/"url":"([^"]+)","model":"tiny"/);
  const ps = await startMlxServe(["ps", "--json", "--url", url!], home.env).ended;
  const [{ ranks }] = JSON.parse(ps.stdout) as [{ ranks: { pid: number }[] }];
  expect(ranks).toHaveLength(2);
  server.kill("SIGKILL");
  while (ranks.some(isAlive)) await Bun.sleep(20);
  await server.ended;
}, 30_000);

test("a rank with another secret is refused, and the server says whom it waits for", async () => {
  const port = freePort();
  const server = startServer(port);
  const rank = startRank(port, "another secret, which is wrong");
  await rank.says(/rank 1: wrong secret/);
  server.kill("SIGTERM");
  await server.ended;
}, 60_000);

test("a rank with another model is refused by name before anything is loaded", async () => {
  const other = join(folder, "other");
  writeChatModel(other, { recites: "abc" });
  const port = freePort();
  const server = startServer(port);
  startRank(port, SECRET, [other]);
  const { stderr, exitCode } = await server.ended;
  expect(stderr).toContain(`rank 1: ${other} is not the server's model`);
  expect(exitCode).toBe(1);
}, 60_000);

test("hosts without a secret, and files that are none of hosts, are refused", async () => {
  const bare = startMlxServe(["serve", home.model, "--hosts", hosts], home.env);
  expect((await bare.ended).stderr).toContain("set MLX_SERVE_RANK_SECRET");
  const file = join(folder, "none.json");
  writeFileSync(file, "[]");
  const wrong = start(["join", "--hosts", file, "--rank", "1"], SECRET);
  expect((await wrong.ended).stderr).toContain(`${file}: expected a list of two or more hosts`);
  const zero = start(["join", "--hosts", hosts, "--rank", "0"], SECRET);
  expect((await zero.ended).stderr).toContain("--rank is from 1 to 1");
}, 30_000);

/** A server, and an `ssh` on its PATH that runs what it is told to on this machine, as this script says. */
function startOverSsh(script: string, ssh = "studio-2"): Running {
  const bin = mkdtempSync(join(folder, "bin-"));
  const main = join(import.meta.dir, "../../src/main.ts");
  const program = (name: string, text: string) =>
    writeFileSync(join(bin, name), `#!/bin/sh\n${text}\n`, { mode: 0o755 });
  program("ssh", script);
  program("mlx-serve", `exec "${process.execPath}" "${main}" "$@"`);
  const file = join(bin, "hosts.json");
  writeFileSync(file, JSON.stringify([{ ips: ["127.0.0.1"] }, { ssh, ips: ["127.0.0.1"] }]));
  // A login shell would replace the PATH.
  const env = { ...home.env, PATH: `${bin}:${home.env.PATH}`, SHELL: join(bin, "shell") };
  program("shell", 'shift; exec /bin/sh -c "$@"');
  const args = ["--hosts", file, "--rank-port", freePort(), "--port", "0", "--log-format", "json"];
  const server = startMlxServe(["serve", home.model, ...args], env);
  started.push(server);
  return server;
}

test("a rank that ssh has started computes with the server, and ends with it", async () => {
  const log = join(folder, "ssh.log");
  const run = `echo "$*" > ${log}; echo $$ > ${log}.pid; while [ "$1" = -o ]; do shift 2; done; shift; exec /bin/sh -c "$*"`;
  const server = startOverSsh(run);
  const [, url] = await server.says(/"url":"([^"]+)","model":"tiny"/);
  const response = await fetch(`${url}/v1/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ prompt: "Hello", max_tokens: 8, temperature: 0 }),
  });
  expect(response.status).toBe(200);
  // No secret is among the arguments, which other users of a machine can see.
  expect(readFileSync(log, "utf8")).toMatch(
    /^-o BatchMode=yes .* studio-2 exec .* mlx-serve join --stdin"\n$/,
  );
  // Each program on the way has become the next.
  const pid = Number(readFileSync(`${log}.pid`, "utf8"));
  expect(isAlive({ pid })).toBe(true);
  // A terminal's Ctrl-C is not for it: the server drains first.
  const groupOf = (each: number) =>
    Bun.spawnSync(["ps", "-o", "pgid=", "-p", String(each)])
      .stdout.toString()
      .trim();
  expect(groupOf(pid)).toBe(String(pid));
  server.kill("SIGTERM");
  expect((await server.ended).exitCode).toBe(0);
  while (isAlive({ pid })) await Bun.sleep(20);
}, 60_000);

test("a host that ssh cannot reach is named, and tried again", async () => {
  const tries = join(folder, "tries");
  mkdirSync(tries);
  const server = startOverSsh(
    `mktemp -p ${tries} > /dev/null; echo "ssh: connect to host studio-9 port 22: No route to host" >&2; exit 255`,
    "studio-9",
  );
  await server.says(
    /rank 1 \(127\.0\.0\.1\): ssh studio-9: ssh: connect to host studio-9 port 22: No route to host.*"msg":"a rank was lost"/,
  );
  while (readdirSync(tries).length < 2) await Bun.sleep(20);
}, 30_000);

test("a name that would be an option of ssh is refused", async () => {
  const server = startOverSsh("exit 1", "-oProxyCommand=evil");
  expect((await server.ended).stderr).toContain("expected a list of two or more hosts");
}, 30_000);
