// Set-up under faults: whatever happens, one clear line, an exit code, and a next run that works.
// The tools are real except for the slow ones: the compiler is a script that leaves empty objects, and links
// by copying the libmlxc that there is.
import { afterAll, expect, test } from "bun:test";
import {
  chmodSync,
  cpSync,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  symlinkSync,
} from "node:fs";
import { dirname, join } from "node:path";
import {
  cacheDirectory,
  defaultModelPath,
  findLibrary,
  libraryIn,
  nativeDirectory,
} from "../../ffi/native.ts";
import { mlxC } from "../../ffi/pins.ts";

const root = join(import.meta.dir, "../..");
const setup = join(root, "scripts/setup.ts");
const folders: string[] = [];
afterAll(() => {
  for (const folder of folders) rmSync(folder, { recursive: true, force: true });
}, 30_000);

function folder(): string {
  const path = mkdtempSync(join(dirname(defaultModelPath()), "../.test-"));
  folders.push(path);
  return path;
}

/** Programs by name, as shell scripts; `python3` always among them, and no other of the machine's. */
async function tools(programs: Record<string, string>): Promise<string> {
  const path = folder();
  const all = { python3: `exec ${real("python3")} "$@"`, ...programs };
  for (const [name, body] of Object.entries(all)) {
    await Bun.write(join(path, name), `#!/bin/sh\n${body}\n`);
    chmodSync(join(path, name), 0o755);
  }
  return path;
}

function real(program: string): string {
  const found = program === "python3" ? pythonPath() : Bun.which(program);
  if (!found) throw new Error(`the tests need ${program}`);
  return found;
}

/** Python itself, where the one on the path is a script of a version manager. */
function pythonPath(): string {
  const { stdout } = Bun.spawnSync(["python3", "-c", "import sys; print(sys.executable)"]);
  return stdout.toString().trim();
}

/** A compiler that runs `compile` for a source of mlx-c's. */
const compiler = (compile: string) => `
case "$*" in *" -c "*/mlx-c-*) ${compile};; esac
for argument; do [ "$previous" = -o ] && output=$argument; previous=$argument; done
case "$*" in
  *-fsyntax-only*) ;;
  *-shared*) /bin/cp ${findLibrary()} "$output";;
  *) : > "$output";;
esac`;

/** A pip that takes its files from the downloads that set-up has kept. */
const pip = (after: string) => `
case "$*" in
  *"pip download"*)
    for argument; do [ "$previous" = --dest ] && dest=$argument; previous=$argument; done
    /bin/cp ${cacheDirectory()}/downloads/*.whl "$dest"; ${after};;
  *) exec ${real("python3")} "$@";;
esac`;

/** A cargo that does the same, and leaves the crate where cargo does. */
const cargo = (after: string) => `
if [ "$1" = --version ]; then echo "cargo 1.90.0 (abc 2025-01-01)"; exit; fi
cache="$CARGO_HOME/registry/cache/registry"
/bin/mkdir -p "$cache"; /bin/cp ${cacheDirectory()}/downloads/*.crate "$cache"; ${after}`;

const damage = (files: string) => `for file in ${files}; do echo damage >> "$file"; done`;

const complete = { "c++": compiler(":"), python3: pip(":"), cargo: cargo(":") };

type Options = { cache: string; path: string; env?: Record<string, string>; script?: string };

/** Set-up with an empty cache, but for the model. */
function start({ cache, path, env = {}, script = setup }: Options) {
  if (!existsSync(join(cache, "models"))) linkModel(cache);
  // A group of its own, so that it can be killed with all it has started.
  return Bun.spawn([process.execPath, script], {
    env: {
      ...process.env,
      PATH: path,
      CARGO_HOME: join(cache, "cargo"),
      MLX_SERVE_CACHE: cache,
      MLX_SERVE_MLXC: "",
      CXX: "",
      ...env,
    },
    stdio: ["ignore", "ignore", "pipe"],
    detached: true,
  });
}

function linkModel(cache: string): void {
  try {
    mkdirSync(join(cache, "models"), { recursive: true });
    linkSync(defaultModelPath(), defaultModelPath({ MLX_SERVE_CACHE: cache }));
  } catch {
    // A cache that cannot be written is what the test is about.
  }
}

async function run(options: Options) {
  const child = start(options);
  const lines = (await new Response(child.stderr).text()).trim().split("\n").filter(Boolean);
  return { exitCode: await child.exited, lines };
}

const made = (cache: string) => existsSync(libraryIn(nativeDirectory({ MLX_SERVE_CACHE: cache })));

/** The next run, with everything in order. */
async function recovers(cache: string): Promise<void> {
  const path = await tools(complete);
  const { exitCode, lines } = await run({ cache, path });
  expect({ exitCode, lines }).toMatchObject({ exitCode: 0 });
  expect(made(cache)).toBe(true);
  expect(readdirSync(join(cache, "native"))).toHaveLength(1);
}

test("without a compiler, one line says what is missing and how to get it", async () => {
  const cache = folder();
  const path = await tools({ dnf: "" });
  const { exitCode, lines } = await run({ cache, path });
  expect(lines).toEqual(["mlx-serve: c++ is missing: install with dnf install gcc-c++"]);
  expect(exitCode).toBe(1);
  await recovers(cache);
}, 60_000);

test("a compiler that does not know C++20 is none", async () => {
  const cache = folder();
  const old = `case "$*" in *-std=c++20*) exit 1;; esac; ${compiler(":")}`;
  const { lines } = await run({ cache, path: await tools({ ...complete, "c++": old }) });
  expect(lines).toEqual([
    "mlx-serve: the C++ compiler does not compile C++20: install a newer one",
  ]);
  const path = await tools({ ...complete, "c++-9": old });
  const named = await run({ cache, path, env: { CXX: "c++-9" } });
  expect(named.lines).toEqual(["mlx-serve: CXX is c++-9, which does not compile C++20"]);
  const { exitCode } = await run({
    cache,
    path: await tools({ ...complete, "c++": old, "clang++": compiler(":") }),
  });
  expect(exitCode).toBe(0);
}, 60_000);

test.if(process.platform === "linux")(
  "where there is apt-get, it is asked for libstdc++'s headers, for zig to compile with",
  async () => {
    const cache = folder();
    const path = await tools({
      ...complete,
      "c++": "exit 1",
      "apt-get": 'echo "E: offline"; exit 100',
      env: `exec ${real("env")} "$@"`,
    });
    const { exitCode, lines } = await run({ cache, path });
    expect(lines).toEqual([
      "mlx-serve: no C++20 compiler found; building with zig and libstdc++'s headers",
      "E: offline",
      "mlx-serve: libstdc++-12-dev could not be fetched with apt-get; run the command again, or " +
        "install a C++20 compiler with apt-get install g++",
    ]);
    expect(exitCode).toBe(1);
    await recovers(cache);
  },
  60_000,
);

test.each([
  ["exit 1", { rustup: "" }, "cargo does not run: run `rustup default stable`"],
  ["exit 1", { dnf: "" }, "cargo does not run: install with dnf install rustup"],
  [
    "echo cargo 1.63.0",
    { rustup: "" },
    "cargo 1.63.0 is older than 1.82.0: run `rustup update stable`",
  ],
  [
    "echo cargo 1.63.0",
    { zypper: "" },
    "cargo 1.63.0 is older than 1.82.0: install with zypper install cargo",
  ],
])(
  "a cargo that is there and of no use is one line: %s, %p",
  async (broken, others, line) => {
    const cache = folder();
    const path = await tools({ ...complete, cargo: broken, ...others });
    const { exitCode, lines } = await run({ cache, path });
    expect(lines.slice(1)).toEqual([`mlx-serve: ${line}`]);
    expect(exitCode).toBe(1);
  },
  60_000,
);

test("a download that arrives damaged is refused, and nothing of it is kept", async () => {
  const cache = folder();
  const path = await tools({ ...complete, python3: pip(damage('"$dest"/*.whl')) });
  const { exitCode, lines } = await run({ cache, path });
  expect(lines.at(-1)).toMatch(/^mlx-serve: mlx_\S+\.whl arrived damaged \(SHA-256 .* instead of /);
  expect(exitCode).toBe(1);
  const kept = readdirSync(join(cache, "downloads"));
  expect(kept).toEqual([expect.stringMatching(/^mlx-sys-\S+\.crate$/)]);
  await recovers(cache);
}, 60_000);

test("a crate that arrives damaged is refused, and cargo's cache is cleared of it", async () => {
  const cache = folder();
  const path = await tools({ ...complete, cargo: cargo(damage('"$cache"/*.crate')) });
  const { exitCode, lines } = await run({ cache, path });
  expect(lines.at(-1)).toMatch(/^mlx-serve: mlx-sys-\S+\.crate arrived damaged \(SHA-256 /);
  expect(exitCode).toBe(1);
  expect(readdirSync(join(cache, "cargo/registry/cache/registry"))).not.toContain(mlxC.file);
  await recovers(cache);
}, 60_000);

test("a download that fails is named, and the next run begins again", async () => {
  const cache = folder();
  const path = await tools({ ...complete, python3: pip("exit 1") });
  const { exitCode, lines } = await run({ cache, path });
  expect(lines.at(-1)).toMatch(
    /^mlx-serve: pip could not fetch mlx-\S+ \S+; run the command again$/,
  );
  expect(exitCode).toBe(1);
  await recovers(cache);
}, 60_000);

test("a set-up that is killed while it builds leaves nothing that looks finished", async () => {
  const cache = folder();
  const building = join(cache, "building");
  const slow = compiler(`: > ${building}; /bin/sleep 60`);
  const path = await tools({ ...complete, "c++": slow });
  const child = start({ cache, path });
  while (!existsSync(building)) await Bun.sleep(20);
  process.kill(-child.pid, "SIGKILL");
  await child.exited;
  expect(made(cache)).toBe(false);
  expect(readdirSync(join(cache, "native"))).toEqual([expect.stringMatching(/^\.building-/)]);
  await recovers(cache);
}, 60_000);

test("a compiler that fails shows what it said, then one line", async () => {
  const cache = folder();
  const broken = compiler(`echo "array.cpp:1: error: no"; exit 2`);
  const path = await tools({ ...complete, "c++": broken });
  const { exitCode, lines } = await run({ cache, path });
  // As many compile at once as there are cores.
  expect(lines).toContain("array.cpp:1: error: no");
  expect(lines.at(-1)).toMatch(
    /^mlx-serve: mlx-c-\d did not compile \(it needs a C\+\+20 compiler\)$/,
  );
  expect(exitCode).toBe(1);
  await recovers(cache);
}, 60_000);

test("a cache that cannot be written is named, with what to do", async () => {
  const readOnly = folder();
  chmodSync(readOnly, 0o555);
  // Nothing is read-only to root but what the kernel keeps.
  const cache = process.getuid?.() === 0 ? "/sys/mlx-serve" : join(readOnly, "cache");
  const path = await tools(complete);
  const { exitCode, lines } = await run({ cache, path });
  expect(lines).toEqual([
    expect.stringMatching(/^mlx-serve: cannot write to \S+ \(E\w+\): set MLX_SERVE_CACHE to /),
  ]);
  expect(exitCode).toBe(1);
  await recovers(folder());
}, 60_000);

test("when nothing is missing, nothing is started and nothing is said", async () => {
  const env = { MLX_SERVE_CACHE: cacheDirectory(), MLX_SERVE_MLXC: findLibrary() };
  const nothing = { exitCode: 0, lines: [] };
  expect(await run({ cache: cacheDirectory(), path: folder(), env })).toEqual(nothing);
});

test("a libmlxc of the user's own whose headers differ is refused", async () => {
  const prefix = folder();
  const library = join(prefix, "lib", "libmlxc.so");
  await Bun.write(library, "");
  await Bun.write(join(prefix, "include/mlx/c/ops.h"), "int mlx_add(mlx_array* res);");
  const env = { MLX_SERVE_MLXC: library };
  const { exitCode, lines } = await run({ cache: folder(), path: folder(), env });
  expect(lines).toEqual([
    expect.stringMatching(/^mlx-serve: MLX_SERVE_MLXC is incompatible: mlx_/),
  ]);
  expect(exitCode).toBe(1);
});

test("sources that change while they are compiled leave no library under the name of either", async () => {
  const cache = folder();
  const copy = folder();
  for (const name of ["ffi", "scripts", "src"]) {
    cpSync(join(root, name), join(copy, name), { recursive: true });
  }
  symlinkSync(join(root, "node_modules"), join(copy, "node_modules"));
  const script = join(copy, "scripts/setup.ts");
  const edited = compiler(`echo >> ${copy}/ffi/cpu/ops.h`);
  const path = await tools({ ...complete, "c++": edited });
  const { exitCode, lines } = await run({ cache, path, script });
  expect(lines.at(-1)).toBe(
    "mlx-serve: ffi/ has changed while it was compiled; run the command again",
  );
  expect(exitCode).toBe(1);
  expect(readdirSync(join(cache, "native"))).toEqual([]);
}, 60_000);
