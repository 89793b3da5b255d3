// Has a server start a rank over ssh, with OpenSSH's client and server on this machine:
//
//   npm run -s ssh
//
// Fails unless both ranks answer a request; unless the rank ends with the server, stopped or killed; and unless a lost
// connection ends the rank, is reported, and is restored.
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { freePorts } from "../src/ranks/group.ts";
import { makeHome, type Running, startMlxServe } from "../test/support/serve-process.ts";
import { Findings, until, within } from "./findings.ts";
import { findProgram, type Program } from "./setup/program.ts";

const HOST = "rank-1";

const home = makeHome();
const folder = mkdtempSync(join(tmpdir(), "mlx-serve-ssh-"));
const remote = join(folder, "remote");
const pidFile = join(remote, "pid");
const [port = 0] = freePorts(1);
const findings = new Findings();
let sshd: Bun.Subprocess | undefined;
let server: Running | undefined;
/** The server's address and its answer. */
let [url, first] = ["", ""];

try {
  await main();
} finally {
  server?.kill("SIGKILL");
  sshd?.kill("SIGKILL");
  home.remove();
  rmSync(folder, { recursive: true, force: true });
}
process.exit(findings.failures === 0 ? 0 : 1);

async function main(): Promise<void> {
  const programs = {
    sshd: await findProgram("openssh-server", "usr/sbin/sshd"),
    ssh: await findProgram("openssh-client", "usr/bin/ssh"),
    keygen: await findProgram("openssh-client", "usr/bin/ssh-keygen"),
  };
  writeFiles(programs.ssh);
  makeKeys(programs.keygen);
  await startSshd(programs.sshd);
  await answered();
  await lost();
  await refused(programs.sshd);
  await stopped();
  await killed();
}

// ---- Processes

/** Files of the remote user and of ssh, and an `ssh` command that uses them. */
function writeFiles(ssh: Program): void {
  const bin = join(folder, "bin");
  const remoteBin = join(remote, "bin");
  for (const each of [bin, remoteBin]) mkdirSync(each, { recursive: true });
  const script = (path: string, text: string) =>
    writeFileSync(path, `#!/bin/sh\n${text}\n`, { mode: 0o755 });
  const main = join(import.meta.dir, "../src/main.ts");
  script(
    join(remoteBin, "mlx-serve"),
    `echo $$ > "${pidFile}"\nexec "${process.execPath}" "${main}" "$@"`,
  );
  const { HOME: _, PATH: _path, ...variables } = home.env;
  const exported = Object.entries(variables).map(([name, value]) => `export ${name}="${value}"`);
  const profile = [...exported, `export PATH="${remoteBin}:$PATH"`].join("\n");
  for (const name of [".profile", ".zprofile"]) writeFileSync(join(remote, name), `${profile}\n`);
  const config = {
    HostName: "127.0.0.1",
    Port: port,
    IdentityFile: join(folder, "user-key"),
    IdentitiesOnly: "yes",
    UserKnownHostsFile: join(folder, "known-hosts"),
  };
  writeFileSync(join(folder, "config"), `Host ${HOST}\n${lines(config)}`);
  const libraries = ssh.env.LD_LIBRARY_PATH ?? "";
  const options = `-F "${join(folder, "config")}"`;
  script(join(bin, "ssh"), `LD_LIBRARY_PATH="${libraries}" exec "${ssh.path}" ${options} "$@"`);
  const daemon = {
    ListenAddress: `127.0.0.1:${port}`,
    HostKey: join(folder, "host-key"),
    AuthorizedKeysFile: join(folder, "user-key.pub"),
    PidFile: "none",
    UsePAM: "no",
    // The keys are in a temporary folder.
    StrictModes: "no",
    PasswordAuthentication: "no",
    PermitRootLogin: "yes",
    SetEnv: `HOME=${remote}`,
  };
  writeFileSync(join(folder, "sshd-config"), lines(daemon));
}

function lines(settings: object): string {
  return Object.entries(settings)
    .map(([name, value]) => `${name} ${value}\n`)
    .join("");
}

function makeKeys({ path, env }: Program): void {
  for (const name of ["host-key", "user-key"]) {
    const command = [path, "-q", "-t", "ed25519", "-N", "", "-f", join(folder, name)];
    const { exitCode, stderr } = Bun.spawnSync(command, { env });
    if (exitCode !== 0) throw new Error(`ssh-keygen: ${stderr}`);
  }
  const key = readFileSync(join(folder, "host-key.pub"), "utf8");
  writeFileSync(join(folder, "known-hosts"), `[127.0.0.1]:${port} ${key}`);
}

async function startSshd({ path, env }: Program): Promise<void> {
  const command = [path, "-D", "-e", "-f", join(folder, "sshd-config")];
  sshd = Bun.spawn(process.getuid?.() === 0 ? inNamespace(command) : command, {
    env,
    stdio: ["ignore", "ignore", Bun.file(join(folder, "sshd.log"))],
  });
  await until("sshd listens", async () => {
    const socket = await Bun.connect({
      hostname: "127.0.0.1",
      port,
      socket: { data() {} },
    });
    socket.end();
    return true;
  });
}

/** As root, sshd requires a user and a folder: provides both without changing the machine's. */
function inNamespace(command: readonly string[]): string[] {
  const passwd = join(folder, "passwd");
  const users = readFileSync("/etc/passwd", "utf8");
  const hasUser = /^sshd:/m.test(users);
  writeFileSync(passwd, hasUser ? users : `${users}sshd:x:65533:65534::/run/sshd:/bin/false\n`);
  const script = [
    `mount --bind "${passwd}" /etc/passwd`,
    "mount -t tmpfs none /run",
    "mkdir -m 755 /run/sshd",
    'exec "$@"',
  ].join(" && ");
  return ["unshare", "--mount", "sh", "-c", script, "sh", ...command];
}

/** Returns its address. */
async function startServer(): Promise<string> {
  const hosts = join(folder, "hosts.json");
  const ips = ["127.0.0.1"];
  writeFileSync(hosts, JSON.stringify([{ ips }, { ssh: HOST, ips }]));
  const [rankPort] = freePorts(1);
  const args = ["--hosts", hosts, "--rank-port", String(rankPort), "--port", "0"];
  const env = { ...home.env, PATH: `${join(folder, "bin")}:${home.env.PATH}` };
  server = startMlxServe(["serve", home.model, ...args, "--log-format", "json"], env);
  return says(/"url":"([^"]+)","model":"tiny"/);
}

/** The pattern's group in the server's output. */
async function says(pattern: RegExp): Promise<string> {
  const [, found] = await within(`the server says ${pattern}`, server!.says(pattern));
  return found!;
}

// ---- Findings

async function ask(url: string): Promise<{ status: number; text: string }> {
  const response = await fetch(`${url}/v1/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ prompt: "Hello", max_tokens: 8, temperature: 0 }),
  });
  const body = (await response.json()) as { choices?: [{ text: string }] };
  return { status: response.status, text: body.choices?.[0].text ?? "" };
}

function remotePid(): number {
  return Number(readFileSync(pidFile, "utf8"));
}

function parentOf(pid: number): number {
  const { stdout } = Bun.spawnSync(["ps", "-o", "ppid=", "-p", String(pid)]);
  return Number(stdout.toString());
}

/** The remote rank and its computing process. */
function remoteProcesses(): number[] {
  const { stdout } = Bun.spawnSync(["ps", "-o", "pid=", "--ppid", String(remotePid())]);
  const children = stdout.toString().trim().split("\n").filter(Boolean).map(Number);
  return [remotePid(), ...children];
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

function gone(pids: readonly number[]): Promise<void> {
  return until("the rank has ended", () => !pids.some((pid) => isAlive(pid)));
}

async function answered(): Promise<void> {
  url = await startServer();
  const { status, text } = await ask(url);
  first = text;
  const pids = remoteProcesses();
  findings.add(status === 200 && pids.length === 2, "a rank over ssh", { status, pids });
}

/** Breaks the connection, which the remote sshd notices too. */
async function lost(): Promise<void> {
  const pids = remoteProcesses();
  process.kill(parentOf(remotePid()), "SIGKILL");
  const named = await says(/"reason":"([^"]*rank 1[^"]*)"[^\n]*"a rank was lost"/);
  await gone(pids);
  await until("it answers again", async () => (await ask(url)).status === 200);
  const { text } = await ask(url);
  const isNew = remotePid() !== pids[0];
  findings.add(isNew && text === first, "a lost connection", { named, isNew });
}

/** First no sshd is listening, then one is. */
async function refused(program: Program): Promise<void> {
  const pids = remoteProcesses();
  sshd!.kill("SIGKILL");
  await sshd!.exited;
  process.kill(parentOf(remotePid()), "SIGKILL");
  const named = await says(/(ssh rank-1: [^"]*Connection refused)/);
  await gone(pids);
  await startSshd(program);
  await until("it answers again", async () => (await ask(url)).status === 200);
  findings.add((await ask(url)).text === first, "a host that refuses, then accepts", { named });
}

async function stopped(): Promise<void> {
  const pids = remoteProcesses();
  server!.kill("SIGTERM");
  const { exitCode } = await server!.ended;
  await gone(pids);
  findings.add(exitCode === 0, "a stopped server", { exitCode, rank: "ended" });
}

async function killed(): Promise<void> {
  url = await startServer();
  await ask(url);
  const pids = remoteProcesses();
  server!.kill("SIGKILL");
  await server!.ended;
  await gone(pids);
  findings.add(true, "a killed server", { rank: "ended" });
}
