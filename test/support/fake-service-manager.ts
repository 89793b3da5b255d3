// systemctl, loginctl, journalctl and launchctl as programs that tests put on the PATH: they note how they were
// called, and run the service that a file describes. `FAKE_SERVICES` names the folder where they keep what they know.
import {
  appendFileSync,
  chmodSync,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";

const POLL_MS = 20;

/** Puts them into a folder. */
export function writeFakeTools(folder: string, names: readonly string[]): void {
  mkdirSync(folder, { recursive: true });
  for (const name of names) {
    const path = join(folder, name);
    writeFileSync(
      path,
      `#!/bin/sh\nexec '${process.execPath}' '${import.meta.path}' ${name} "$@"\n`,
    );
    chmodSync(path, 0o755);
  }
}

/** A file `refuse` in their folder has a command fail. */
export type Refusal = { command: string; code: number; says: string };

export type Described = { words: string[]; variables: Record<string, string>; log?: string };

/** Reads a unit as systemd.syntax(7) and systemd.service(5) say. */
export function readUnit(text: string): Described {
  const values = (key: string) =>
    text
      .split("\n")
      .filter((line) => line.startsWith(`${key}=`))
      .map((line) => unquote(line.slice(key.length + 1)));
  const [[first = "", ...rest] = []] = values("ExecStart");
  if (!first.startsWith(":")) throw new Error("without a colon $ would be replaced");
  const pairs = values("Environment").map(([word = ""]) => word.split(/=(.*)/s));
  const variables = Object.fromEntries(pairs.map(([name, value]) => [name!, value!]));
  return { words: [first.slice(1), ...rest], variables };
}

function unquote(line: string): string[] {
  const words = line.matchAll(/"((?:[^"\\]|\\.)*)"|(\S+)/g);
  return Array.from(words, ([, inside, bare]) =>
    (inside ?? bare!).replace(/\\(.)/g, "$1").replace(/%(.)/g, (_, letter: string) => {
      if (letter === "%") return "%";
      throw new Error(`%${letter} would be replaced`);
    }),
  );
}

/** Reads a property list with the reader that Python has. */
export function readPropertyList(path: string): Described & { all: Record<string, unknown> } {
  const script =
    "import json, plistlib, sys; print(json.dumps(plistlib.load(open(sys.argv[1], 'rb'))))";
  const { stdout, stderr, exitCode } = Bun.spawnSync(["python3", "-c", script, path]);
  if (exitCode !== 0) throw new Error(stderr.toString());
  const all = JSON.parse(stdout.toString());
  const { ProgramArguments: words, EnvironmentVariables: variables } = all;
  return { all, words, variables, log: all.StandardErrorPath };
}

/** An orphan that has ended may wait for its new parent to notice. */
function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    const stat = `/proc/${pid}/stat`;
    return !existsSync(stat) || !/^\d+ \(.*\) Z/s.test(readFileSync(stat, "utf8"));
  } catch {
    return false;
  }
}

class FakeManager {
  readonly #folder = process.env.FAKE_SERVICES!;

  path(name: string): string {
    return join(this.#folder, name);
  }

  has(name: string): boolean {
    return existsSync(this.path(name));
  }

  read(name: string): string {
    return readFileSync(this.path(name), "utf8");
  }

  get pid(): number {
    const pid = this.has("pid") ? Number(this.read("pid")) : 0;
    return pid > 0 && isAlive(pid) ? pid : 0;
  }

  spawn({ words, variables, log = this.path("log") }: Described): void {
    mkdirSync(dirname(log), { recursive: true });
    const file = openSync(log, "a");
    // A service gets none of the caller's variables.
    const env = { PATH: "/usr/bin:/bin", HOME: process.env.HOME, ...variables };
    const child = Bun.spawn(words, { env, stdio: ["ignore", file, file], detached: true });
    writeFileSync(this.path("pid"), String(child.pid));
    child.unref();
  }

  async end(): Promise<void> {
    const { pid } = this;
    if (pid > 0) process.kill(pid, "SIGTERM");
    while (this.pid > 0) await Bun.sleep(POLL_MS);
  }
}

async function systemctl(fake: FakeManager, args: readonly string[]): Promise<void> {
  if (args[0] !== "--user") throw new Error("it is not root's systemd");
  const [, verb] = args;
  const unit = join(process.env.HOME!, ".config/systemd/user/mlx-serve.service");
  if (verb === "daemon-reload") {
    if (existsSync(unit)) writeFileSync(fake.path("loaded"), readFileSync(unit));
    else rmSync(fake.path("loaded"), { force: true });
  } else if (verb === "start") {
    if (fake.pid === 0) fake.spawn(readUnit(fake.read("loaded")));
  } else if (verb === "stop" || (verb === "disable" && args.includes("--now"))) {
    await fake.end();
  } else if (verb === "show") {
    const { pid } = fake;
    const hasFailed = pid === 0 && fake.has("fails");
    console.log(`ActiveState=${hasFailed ? "failed" : pid > 0 ? "active" : "inactive"}
SubState=${hasFailed ? "failed" : pid > 0 ? "running" : "dead"}
MainPID=${pid}
Result=${hasFailed ? "exit-code" : "success"}
ExecMainStatus=${hasFailed ? 1 : 0}`);
  }
}

async function launchctl(fake: FakeManager, args: readonly string[]): Promise<void> {
  const [verb] = args;
  const fail = (code: number, said: string) => {
    console.error(said);
    process.exitCode = code;
  };
  // A job that is booted out is there until its process has ended.
  if (fake.has("leaving") && fake.pid === 0) {
    rmSync(fake.path("leaving"));
    rmSync(fake.path("loaded"));
  }
  if (verb === "bootstrap") {
    if (fake.has("loaded")) return fail(5, "Bootstrap failed: 5: Input/output error");
    writeFileSync(fake.path("loaded"), "");
    fake.spawn(readPropertyList(args[2]!));
  } else if (verb === "bootout") {
    if (!fake.has("loaded")) return fail(3, "Boot-out failed: 3: No such process");
    writeFileSync(fake.path("leaving"), "");
    if (fake.pid > 0) process.kill(fake.pid, "SIGTERM");
    return fail(36, "Boot-out failed: 36: Operation now in progress");
  } else if (verb === "print") {
    if (!fake.has("loaded")) return fail(113, "Could not find service in domain for user gui");
    const { pid } = fake;
    console.log(
      [
        `${args[1]} = {`,
        "\tactive count = 1",
        "\ttype = LaunchAgent",
        `\tstate = ${pid > 0 ? "running" : "not running"}`,
        "\texit timeout = 40",
        ...(pid > 0 ? [`\tpid = ${pid}`] : []),
        `\tlast exit code = ${pid > 0 ? "(never exited)" : "1"}`,
        "\tresource coalition = {\n\t\tstate = active\n\t}",
        "}",
      ].join("\n"),
    );
  }
}

if (import.meta.main) {
  const [name = "", ...args] = process.argv.slice(2);
  const fake = new FakeManager();
  appendFileSync(fake.path("calls"), `${[name, ...args].join(" ")}\n`);
  const refusal: Refusal | undefined = fake.has("refuse")
    ? JSON.parse(fake.read("refuse"))
    : undefined;
  if (refusal && [name, ...args].join(" ").startsWith(refusal.command)) {
    console.error(refusal.says);
    process.exit(refusal.code);
  }
  if (name === "systemctl") await systemctl(fake, args);
  if (name === "launchctl") await launchctl(fake, args);
  if (name === "loginctl") console.log("Linger=no");
  if (name === "journalctl") process.stdout.write(fake.read("log"));
}
