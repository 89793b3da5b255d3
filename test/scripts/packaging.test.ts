import { describe, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { scripts, version } from "../../package.json";
import { formula } from "../../scripts/packaging/homebrew.ts";
import { makePackages } from "../../scripts/packaging/npm.ts";
import { verbs } from "../../src/cli/verbs.ts";
import { Settings } from "../../src/config/settings.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const root = join(import.meta.dir, "../..");
const packaging = (name: string) => readFileSync(join(root, "scripts/packaging", name), "utf8");
const temporary = temporaryFolder();
const folder = () => mkdtempSync(join(temporary, "folder-"));

describe("npm", () => {
  const here = `${process.platform}-${process.arch}`;

  /** A dist/ with a script in the executable's place. */
  function dist(systems: Record<string, string>): string {
    const path = folder();
    for (const [system, script] of Object.entries(systems)) {
      writeFileSync(join(path, `mlx-serve-${system}`), `#!/bin/sh\n${script}\n`);
      writeFileSync(join(path, `mlx-serve-${system}.licenses.txt`), `inside ${system}`);
    }
    return path;
  }

  function npm(cwd: string, ...args: string[]): string {
    const options = ["--offline", "--no-audit", "--no-fund", "--cache", join(temporary, "cache")];
    const { stdout, stderr, exitCode } = Bun.spawnSync(["npm", ...args, ...options], { cwd });
    if (exitCode !== 0) throw new Error(stderr.toString());
    return stdout.toString();
  }

  /** Packs the packages, and installs the named ones in an empty folder. */
  function install(from: string, names: string[]): string {
    const packed = folder();
    for (const path of makePackages(from, folder()))
      npm(path, "pack", "--pack-destination", packed);
    const empty = folder();
    npm(empty, "install", ...names.map((name) => join(packed, `${name}-${version}.tgz`)));
    return empty;
  }

  test("the packed packages, installed in an empty folder, run the executable", () => {
    const from = dist({ [here]: 'echo "this system: $*"; exit 7', "other-cpu": "" });
    const empty = install(from, ["mlx-serve", `mlx-serve-${here}`]);
    const { stdout, exitCode } = Bun.spawnSync(["npx", "--offline", "mlx-serve", "a", "b c"], {
      cwd: empty,
    });
    expect(stdout.toString()).toBe("this system: a b c\n");
    expect(exitCode).toBe(7);
    expect(readdirSync(join(empty, "node_modules/@mlx-serve"))).toEqual([here]);
    const notices = join(empty, "node_modules/@mlx-serve", here, "THIRD_PARTY_LICENSES.txt");
    expect(readFileSync(notices, "utf8")).toBe(`inside ${here}`);
  }, 60_000);

  /** The packages as npm lays them out, without npm. */
  function layOut(from: string): string[] {
    const modules = join(folder(), "node_modules");
    makePackages(from, modules);
    return ["node", join(modules, "mlx-serve", "npm-shim.mjs")];
  }

  test("each system's package says where it fits, and the main one asks for all but CUDA's", () => {
    const from = dist({ "linux-x64": "", "linux-x64-cuda": "", "darwin-arm64": "" });
    const [x64, mac, cuda, main] = makePackages(from, folder()).map((path) =>
      JSON.parse(readFileSync(join(path, "package.json"), "utf8")),
    );
    const linux = { os: ["linux"], cpu: ["x64"], libc: ["glibc"], version };
    expect(x64).toMatchObject({ name: "@mlx-serve/linux-x64", ...linux });
    expect(cuda).toMatchObject({ name: "@mlx-serve/linux-x64-cuda", ...linux });
    expect(mac).toMatchObject({ name: "@mlx-serve/darwin-arm64", os: ["darwin"], cpu: ["arm64"] });
    expect(main.optionalDependencies).toEqual({
      "@mlx-serve/linux-x64": version,
      "@mlx-serve/linux-arm64": version,
      "@mlx-serve/darwin-arm64": version,
    });
  });

  test.if(here === "linux-x64")("CUDA's package comes first where it is installed", () => {
    const command = layOut(dist({ "linux-x64": "echo plain", "linux-x64-cuda": "echo cuda" }));
    expect(Bun.spawnSync(command).stdout.toString()).toBe("cuda\n");
  });

  test("without a package for this system there is one line", () => {
    const { stderr, exitCode } = Bun.spawnSync(layOut(dist({})));
    expect(stderr.toString()).toStartWith(`mlx-serve: @mlx-serve/${here} is not installed`);
    expect(exitCode).toBe(1);
  });

  test("SIGTERM reaches the executable, which may take its time", async () => {
    const drain = `trap 'echo drained; exit 0' TERM; echo ready; for i in $(seq 100); do sleep 0.05; done`;
    const child = Bun.spawn(layOut(dist({ [here]: drain })), { stdout: "pipe" });
    let said = "";
    for await (const chunk of child.stdout) {
      if (said === "") child.kill("SIGTERM");
      said += Buffer.from(chunk).toString();
    }
    expect(said).toBe("ready\ndrained\n");
    expect(await child.exited).toBe(0);
  });
});

test("the formula has the version and the hash of each archive", () => {
  const release = folder();
  const hashes = ["darwin-arm64", "linux-x64", "linux-arm64"].map((system) => {
    writeFileSync(join(release, `mlx-serve-${system}.tar.gz`), system);
    return new Bun.CryptoHasher("sha256").update(system).digest("hex");
  });
  const text = formula("owner/name", release);
  const found = Array.from(text.matchAll(/sha256 "(\w+)"/g), ([, hash]) => hash!);
  expect(found).toEqual(hashes);
  expect(text).toContain(`releases/download/v${version}/mlx-serve-linux-x64.tar.gz"`);
  // Without a model the service ends with an error at every start: that must not go on for ever, unseen.
  expect(text).toContain('run [opt_bin/"mlx-serve", "serve"]');
  expect(text).toContain("keep_alive successful_exit: false");
  expect(text).toContain('error_log_path var/"log/mlx-serve.log"');
  const [, model] = /^ +echo '(model = .*)' >> /m.exec(text)!;
  expect(Bun.TOML.parse(model!)).toEqual({ model: expect.stringMatching(/^mlx-community\//) });
  const count = (words: RegExp) => text.match(words)!.length;
  expect(count(/\bdo$|\bdef |^class /gm)).toBe(count(/\bend$/gm));
});

type Step = { uses?: string; run?: string; if?: string };
type Workflow = {
  jobs: Record<
    string,
    { needs?: string; steps: Step[]; strategy?: { matrix: { include: Record<string, string>[] } } }
  >;
};

function workflow(name: string): { jobs: Workflow["jobs"]; commands: string[] } {
  const text = readFileSync(join(root, ".github/workflows", name), "utf8");
  const { jobs } = Bun.YAML.parse(text) as Workflow;
  const steps = Object.values(jobs).flatMap((job) => job.steps);
  return { jobs, commands: steps.flatMap(({ run }) => run ?? []) };
}

const systems = ["linux-x64", "linux-arm64", "darwin-arm64"];
const systemsOf = (job: Workflow["jobs"][string] | undefined) =>
  job?.strategy?.matrix.include.map(({ system }) => system);

test("the release workflow builds, starts on every system, and publishes", () => {
  const { jobs } = workflow("release.yml");
  expect(Object.entries(jobs).map(([name, { needs }]) => [name, needs])).toEqual([
    ["build", undefined],
    ["start", "build"],
    ["publish", "start"],
  ]);
  expect(systemsOf(jobs.start)).toEqual(systems);
});

test("CI tests every system, and the executable there by itself and as a service", () => {
  const { jobs, commands } = workflow("ci.yml");
  expect(systemsOf(jobs.test)).toEqual(systems);
  expect(commands.slice(0, 3)).toEqual(["npm test", "npm run build", "./dist/mlx-serve doctor"]);
  const selfTest = jobs.test!.steps.find(({ run }) => run?.includes("--self-test"))!;
  expect(selfTest.if).toContain("!cancelled()");
  expect(selfTest.run).toStartWith("./dist/mlx-serve doctor --self-test --report ");
  const actions = commands.join("\n").matchAll(/mlx-serve service (\w+)/g);
  expect(Array.from(actions, ([, action]) => action!)).toEqual([
    ...["install", "start", "status", "logs", "uninstall"],
  ]);
});

test.each(["release.yml", "ci.yml"])("the commands of %s are there", (name) => {
  const { commands } = workflow(name);
  expect(commands.length).toBeGreaterThan(4);
  for (const [, script] of commands.join("\n").matchAll(/npm run ([\w:]+)/g)) {
    expect(scripts).toHaveProperty([script!]);
  }
  for (const [, verb] of commands.join("\n").matchAll(/^\.\/(?:dist\/)?mlx-serve (\w+)/gm)) {
    expect(verbs.map((each) => each.name)).toContain(verb!);
  }
  for (const command of commands) {
    // GitHub replaces its expressions before a shell sees them.
    const shown = command.replace(/\$\{\{.*?\}\}/g, "x");
    expect(Bun.spawnSync(["/bin/sh", "-n", "-c", shown]).exitCode).toBe(0);
  }
});

test("the Dockerfile copies what the build makes, and its context is no more than that", () => {
  const [, copied] = /^COPY (\S+) /m.exec(packaging("Dockerfile"))!;
  expect(copied).toBe("dist/mlx-serve");
  expect(packaging("Dockerfile.dockerignore")).toBe(`*\n!${copied}\n`);
  const [, start] = /^CMD (.*)$/m.exec(packaging("Dockerfile"))!;
  expect(JSON.parse(start!)[0]).toBe("serve");
});

test.if(Bun.which("systemd-analyze") !== null)("systemd has nothing to say of the unit", () => {
  const unit = join(folder(), "mlx-serve.service");
  writeFileSync(
    unit,
    packaging("mlx-serve.service").replace("/usr/local/bin/mlx-serve", "/bin/sh"),
  );
  const { stderr, exitCode } = Bun.spawnSync(["systemd-analyze", "verify", unit]);
  expect(stderr.toString()).toBe("");
  expect(exitCode).toBe(0);
});

test("the flags that the services start with are settings", () => {
  const flags = Object.keys(Settings.shape).map(
    (name) => `--${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`,
  );
  const [, unit] = /^ExecStart=(.*)$/m.exec(packaging("mlx-serve.service"))!;
  const [, image] = /^CMD (.*)$/m.exec(packaging("Dockerfile"))!;
  for (const command of [unit!, image!]) {
    const used = command.match(/--[a-z-]+/g)!;
    expect(flags).toEqual(expect.arrayContaining(used));
    expect(used.slice(0, 2)).toEqual(["--host", "--port"]);
  }
});
