// `mlx-serve service` on Linux and on macOS, with managers that tests put on the PATH: they run what they are told.
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import {
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { launchd } from "../../src/service/launchd.ts";
import { systemd } from "../../src/service/systemd.ts";
import {
  type Refusal,
  readPropertyList,
  readUnit,
  writeFakeTools,
} from "../support/fake-service-manager.ts";
import { type Ended, type Home, makeHome } from "../support/serve-process.ts";

const main = join(import.meta.dir, "../support/platform-main.ts");
const uid = process.getuid!();

/** All that files of systemd, XML and shells would read as something else. */
const ODD = `a "b" 'c' \\d $HOME \${x} 50% %h &amp; <x> é;`;

let home: Home;
let [bin, services] = ["", ""];
beforeAll(() => {
  home = makeHome();
  bin = join(home.env.HOME!, "bin");
  services = join(home.env.HOME!, "services");
  const odd = join(home.env.HOME!, ODD);
  renameSync(home.model, odd);
  writeFakeTools(bin, ["systemctl", "loginctl", "journalctl", "launchctl"]);
});
afterAll(() => home.remove());

beforeEach(() => {
  rmSync(services, { recursive: true, force: true });
  mkdirSync(services);
});

async function run(
  platform: "linux" | "darwin",
  args: string[],
  more: Record<string, string> = {},
): Promise<Ended> {
  const env = {
    ...home.env,
    PATH: `${bin}:${process.env.PATH}`,
    USER: "alice",
    FAKE_SERVICES: services,
    TEST_PLATFORM: platform,
    ...more,
  };
  const child = Bun.spawn([process.execPath, main, "service", ...args], {
    env,
    cwd: home.env.HOME!,
    stdout: "pipe",
    stderr: "pipe",
  });
  const ended = Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
  const [stdout, stderr, exitCode] = await ended;
  return { stdout, stderr, exitCode };
}

async function says(...given: Parameters<typeof run>): Promise<string> {
  const { stdout, stderr, exitCode } = await run(...given);
  expect([stderr, exitCode]).toEqual(["", 0]);
  return stdout;
}

async function fails(...given: Parameters<typeof run>): Promise<string> {
  const { stdout, stderr, exitCode } = await run(...given);
  expect([stdout, exitCode]).toEqual(["", 1]);
  expect(stderr).toMatch(/^mlx-serve: [^\n]*\n$/);
  return stderr;
}

const refuse = (refusal: Refusal) =>
  writeFileSync(join(services, "refuse"), JSON.stringify(refusal));

/** What the managers were asked since the last time. */
function calls(): string[] {
  const path = join(services, "calls");
  if (!existsSync(path)) return [];
  const lines = readFileSync(path, "utf8").trim().split("\n");
  rmSync(path);
  // They are asked again and again until the server listens, or has ended.
  return lines.filter((line, i) => line !== lines[i - 1]);
}

const show =
  "systemctl --user show mlx-serve.service --property=ActiveState,SubState,MainPID,Result,ExecMainStatus";
const systemctl = (words: string) => `systemctl --user ${words}`;
const target = `gui/${uid}/mlx-serve`;

const systems = [
  {
    platform: "linux",
    manager: "systemd",
    file: ".config/systemd/user/mlx-serve.service",
    read: (path: string) => readUnit(readFileSync(path, "utf8")),
    hints: [
      "it ends when you log out; `loginctl enable-linger` keeps it running, and starts it at boot",
    ],
    asked: {
      install: [
        show,
        systemctl("daemon-reload"),
        systemctl("enable mlx-serve.service"),
        "loginctl show-user alice --property=Linger",
      ],
      start: [
        systemctl("reset-failed mlx-serve.service"),
        systemctl("start mlx-serve.service"),
        show,
      ],
      status: [show],
      stop: [systemctl("stop mlx-serve.service")],
      uninstall: [systemctl("disable --now mlx-serve.service"), systemctl("daemon-reload")],
      logs: "journalctl --user --unit=mlx-serve.service --output=cat --lines=5 --no-pager",
    },
  },
  {
    platform: "darwin",
    manager: "launchd",
    file: "Library/LaunchAgents/mlx-serve.plist",
    read: readPropertyList,
    hints: [],
    asked: {
      install: [`launchctl print ${target}`, `launchctl enable ${target}`],
      start: [`launchctl print ${target}`, "launchctl bootstrap", `launchctl print ${target}`],
      status: [`launchctl print ${target}`],
      stop: [
        `launchctl print ${target}`,
        `launchctl bootout ${target}`,
        `launchctl print ${target}`,
      ],
      uninstall: [`launchctl print ${target}`],
      logs: undefined,
    },
  },
] as const;

describe.each(systems)("$manager", ({ platform, manager, file, read, hints, asked }) => {
  const path = () => join(home.env.HOME!, file);

  test("install, start, status, logs, stop and uninstall", async () => {
    const settings = ["--port", "0", "--api-key", "secret", "--drain-timeout=7s"];
    const installed = (await says(platform, ["install", ODD, ...settings])).split("\n");
    expect(installed).toEqual([
      `${path()} written`,
      expect.stringMatching(new RegExp(`^${manager} will start at login: .* serve .*--port=0`)),
      ...hints,
      "next: `mlx-serve service start`",
      "",
    ]);
    expect(calls()).toEqual([...asked.install]);

    // The same from any folder, and the key for nobody else.
    const { words, variables } = read(path());
    const model = join(home.env.HOME!, ODD);
    const flags = ["--threads=1", "--port=0", "--drain-timeout=7s", `--model=${model}`];
    expect(words).toEqual([process.execPath, main, "serve", ...flags]);
    expect(variables).toEqual({
      MLX_SERVE_CACHE: home.env.MLX_SERVE_CACHE!,
      MLX_SERVE_MLXC: home.env.MLX_SERVE_MLXC!,
      MLX_SERVE_API_KEY: '["secret"]',
    });
    expect(installed.join()).not.toContain("secret");
    expect(statSync(path()).mode & 0o777).toBe(0o600);

    const again = await says(platform, ["install", ODD, ...settings]);
    expect(again).toStartWith(`${path()} unchanged\n`);
    expect(calls()).toEqual([...asked.install]);

    const started = await says(platform, ["start"]);
    const [, url] = /^the service listens at (http:\S+);/.exec(started)!;
    expect(calls().map((call) => call.replace(/(bootstrap) .*/, "$1"))).toEqual([...asked.start]);
    const ask = (key: string) =>
      fetch(`${url}/v1/models`, { headers: { Authorization: `Bearer ${key}` } });
    expect([(await ask("secret")).status, (await ask("other")).status]).toEqual([200, 401]);

    // It is told apart from what is only written.
    const other = await says(platform, ["install", ODD, ...settings, "--log-level", "debug"]);
    expect(other).toContain(`${path()} written\n`);
    expect(other).toContain("`mlx-serve service stop` and `mlx-serve service start`");
    calls();

    expect(await says(platform, ["status"])).toMatch(
      new RegExp(
        `^service  ${manager}, .*\nstate    running, process \\d+\nserver   ${url}, (ok|loading)\n$`,
      ),
    );
    expect(calls()).toEqual([...asked.status]);
    expect(await says(platform, ["logs", "--lines", "5"])).toContain('"msg":');
    expect(calls()).toEqual(asked.logs ? [asked.logs] : []);

    expect(await says(platform, ["stop"])).toStartWith("the service is stopped");
    expect(calls()).toEqual([...asked.stop]);
    expect(await fetch(url!).catch(() => "gone")).toBe("gone");
    const { stdout, exitCode } = await run(platform, ["status"]);
    expect(stdout).toContain("state    stopped\n");
    expect(exitCode).toBe(1);
    calls();

    expect(await says(platform, ["uninstall"])).toContain(`${path()} removed\n`);
    expect(calls()).toEqual([...asked.uninstall]);
    expect(existsSync(path())).toBe(false);
    expect(await says(platform, ["uninstall"])).toStartWith("the service is not installed");
    expect(calls()).toEqual([]);
  }, 60_000);

  test("uninstall stops it", async () => {
    await says(platform, ["install", ODD, "--port=0"]);
    const [, url] = /listens at (http:\S+);/.exec(await says(platform, ["start"]))!;
    await says(platform, ["uninstall"]);
    expect(await fetch(url!).catch(() => "gone")).toBe("gone");
  }, 30_000);

  test("what serve would refuse is refused, and nothing is written", async () => {
    const refused = [
      [["install", "./nothing"], /no such file or folder/, 1],
      [["install", "org/nothing"], /`mlx-serve pull org\/nothing` downloads it/, 1],
      [["install", ODD, "--port", "99999"], /--port: expected/, 2],
      [["install", ODD, "--host", "0.0.0.0"], /on 0\.0\.0\.0 .*--api-key/, 2],
      [["install", ODD, "--keys-file", "none.json"], /none\.json does not exist/, 2],
      [["install", ODD, "--log-level=debug", "--alias", "a\u001bb"], /--alias: expected/, 2],
      [["install", ODD, "--data-dir", "a\nb"], /control characters: "--data-dir=.*a\\nb"/, 1],
    ] as const;
    for (const [args, message, code] of refused) {
      const { stdout, stderr, exitCode } = await run(platform, [...args]);
      expect(stderr).toMatch(message);
      expect([stdout, exitCode]).toEqual(["", code]);
    }
    expect(existsSync(path())).toBe(false);
  }, 30_000);

  test("without its program there is one line", async () => {
    const tool = platform === "linux" ? "systemctl" : "launchctl";
    const empty = join(home.env.HOME!, "empty");
    mkdirSync(empty, { recursive: true });
    expect(await fails(platform, ["install", ODD], { PATH: empty })).toStartWith(
      `mlx-serve: ${tool} is not on the PATH: `,
    );
    expect(existsSync(path())).toBe(false);
  }, 30_000);

  test("what is not installed says how to", async () => {
    const actions = ["start", "stop", "status", "logs"];
    for (const said of await Promise.all(actions.map((action) => fails(platform, [action])))) {
      expect(said).toContain("`mlx-serve service install [model]`");
    }
  }, 30_000);
});

describe("the unit", () => {
  /** A program that prints its arguments, in a folder with an odd name. */
  function program(folder: string): string {
    const path = join(home.env.HOME!, folder, "print");
    mkdirSync(join(home.env.HOME!, folder), { recursive: true });
    writeFileSync(path, `#!/bin/sh\nprintf '%s\\n' "$@"\n`, { mode: 0o755 });
    return path;
  }
  const describeUnit = (path: string) =>
    systemd({ ...home.env, PATH: bin }).describe({
      words: [path, "serve", `--model=${ODD}`, ";", "-"],
      variables: { HF_HOME: ODD },
      stopSeconds: 40,
    });
  // systemd runs no program with quotes in its path by itself.
  const folders = ["a b $HOME %h;", ODD];

  test.each(folders)("runs a program in %s", (folder) => {
    const { words, variables } = readUnit(describeUnit(program(folder)));
    expect(variables).toEqual({ HF_HOME: ODD });
    expect(Bun.spawnSync(words).stdout.toString()).toBe(`serve\n--model=${ODD}\n;\n-\n`);
  });

  test.if(Bun.which("systemd-analyze") !== null)(
    "is one that systemd has nothing to say of",
    () => {
      for (const folder of folders) {
        const unit = join(home.env.HOME!, "mlx-serve.service");
        writeFileSync(unit, describeUnit(program(folder)));
        const { stderr, exitCode } = Bun.spawnSync(["systemd-analyze", "--user", "verify", unit], {
          env: { PATH: process.env.PATH!, HOME: home.env.HOME!, XDG_RUNTIME_DIR: services },
        });
        expect([stderr.toString(), exitCode]).toEqual(["", 0]);
      }
    },
  );
});

test("launchd's file has what launchd reads", () => {
  const path = join(home.env.HOME!, "test.plist");
  const manager = launchd({ ...home.env, PATH: bin });
  const words = ["/bin/echo", ODD, "]]>", ""] as const;
  writeFileSync(path, manager.describe({ words, variables: { A: ODD }, stopSeconds: 40 }));
  const log = join(home.env.HOME!, "Library/Logs/mlx-serve.log");
  expect(readPropertyList(path).all).toEqual({
    Label: "mlx-serve",
    ProgramArguments: [...words],
    EnvironmentVariables: { A: ODD },
    RunAtLoad: true,
    KeepAlive: { SuccessfulExit: false },
    ProcessType: "Interactive",
    ExitTimeOut: 40,
    StandardOutPath: log,
    StandardErrorPath: log,
  });
});

test("without a session systemd's words come with advice, and nothing is written", async () => {
  for (const words of [
    "Failed to connect to bus: No medium found",
    "Failed to connect to user scope bus via local transport: $DBUS_SESSION_BUS_ADDRESS and $XDG_RUNTIME_DIR not defined",
    "System has not been booted with systemd as init system (PID 1). Can't operate.",
  ]) {
    refuse({ command: "systemctl", code: 1, says: words });
    const said = await fails("linux", ["install", ODD]);
    expect(said).toContain(`systemctl --user show failed: ${words}`);
    expect(said).toContain("`loginctl enable-linger`");
    expect(existsSync(join(home.env.HOME!, ".config/systemd/user/mlx-serve.service"))).toBe(false);
  }
}, 30_000);

test("without a session at the screen launchd's words come with advice", async () => {
  await says("darwin", ["install", ODD, "--port=0"]);
  const words = "Bootstrap failed: 125: Domain does not support specified action";
  refuse({ command: "launchctl bootstrap", code: 125, says: words });
  const said = await fails("darwin", ["start"]);
  expect(said).toContain(`launchctl bootstrap failed: ${words}. `);
  expect(said).toContain("log in there");
  rmSync(join(services, "refuse"));
  await says("darwin", ["uninstall"]);
}, 30_000);

test("a service that ends when it starts is said to have failed", async () => {
  await says("linux", ["install", ODD, "--port=0"]);
  writeFileSync(join(services, "fails"), "");
  refuse({ command: "systemctl --user start", code: 0, says: "" });
  expect(await fails("linux", ["start"])).toContain(
    "the service failed to start: failed (exit-code, exit code 1); `mlx-serve service logs`",
  );
  rmSync(join(services, "refuse"));
  await says("linux", ["uninstall"]);
}, 30_000);

test.if(uid === 0)(
  "sudo is refused by name",
  async () => {
    const { stderr, exitCode } = await run("linux", ["status"], { SUDO_USER: "alice" });
    expect(stderr).toBe("mlx-serve: services are per user: run it as alice, without sudo\n");
    expect(exitCode).toBe(2);
  },
  30_000,
);
