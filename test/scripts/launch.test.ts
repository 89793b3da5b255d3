// The launcher in a checkout that has nothing yet, with an npm that the test controls.
import { expect, test } from "bun:test";
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../support/temporary-folder.ts";

const root = join(import.meta.dir, "../..");

const temporary = temporaryFolder();

function program(path: string, body: string): void {
  writeFileSync(path, `#!/bin/sh\n${body}\n`);
  chmodSync(path, 0o755);
}

/** A checkout with a launcher, a lock file, a set-up that does nothing, and a program. */
function checkout({ npm, setup = "" }: { npm: string; setup?: string }) {
  const folder = mkdtempSync(join(temporary, "checkout-"));
  mkdirSync(join(folder, "scripts"));
  mkdirSync(join(folder, "bin"));
  copyFileSync(join(root, "scripts/launch.mjs"), join(folder, "scripts/launch.mjs"));
  writeFileSync(join(folder, "package-lock.json"), "{}");
  writeFileSync(join(folder, "scripts/setup.ts"), setup);
  program(join(folder, "bin/npm"), npm);
  return folder;
}

/** What `npm ci` leaves, and a line for each time it ran. */
const install = `
echo npm "$@" >> npm.log
/bin/mkdir -p node_modules/.bin && /bin/ln -sf ${process.execPath} node_modules/.bin/bun`;

function launch(folder: string, source: string, ...args: string[]) {
  writeFileSync(join(folder, "program.ts"), source);
  const launcher = join(folder, "scripts/launch.mjs");
  const path = `${join(folder, "bin")}:/usr/bin:/bin`;
  return Bun.spawn([process.execPath, launcher, "program.ts", ...args], {
    env: { ...process.env, PATH: path },
    stdio: ["ignore", "pipe", "pipe"],
  });
}

const text = (stream: ReadableStream) => new Response(stream).text();

test("packages are installed once, and again when the lock file changes", async () => {
  const folder = checkout({ npm: install });
  for (const lock of ["{}", "{}", '{ "changed": true }', '{ "changed": true }']) {
    writeFileSync(join(folder, "package-lock.json"), lock);
    expect(await launch(folder, "").exited).toBe(0);
  }
  const log = await Bun.file(join(folder, "npm.log")).text();
  expect(log.trim().split("\n")).toEqual(Array(2).fill("npm ci --no-audit --no-fund"));
});

test("an installation that fails is begun again by the next run", async () => {
  const folder = checkout({ npm: "exit 1" });
  const failed = launch(folder, "");
  expect(await text(failed.stderr)).toBe(
    "mlx-serve: the packages could not be installed; run the command again\n",
  );
  expect(await failed.exited).toBe(1);
  program(join(folder, "bin/npm"), install);
  expect(await launch(folder, "").exited).toBe(0);
});

test("a set-up that fails ends the launch with its exit code, before the program runs", async () => {
  const folder = checkout({ npm: install, setup: "process.exit(3)" });
  const child = launch(folder, "console.log('ran')");
  expect(await text(child.stdout)).toBe("");
  expect(await child.exited).toBe(3);
});

test("arguments go to the program and its exit code comes back", async () => {
  const folder = checkout({ npm: install });
  const source = "console.log(JSON.stringify(process.argv.slice(2))); process.exit(7)";
  const child = launch(folder, source, "--port", "9000", "a b");
  expect(JSON.parse(await text(child.stdout))).toEqual(["--port", "9000", "a b"]);
  expect(await child.exited).toBe(7);
});

test("set-up is for the backend that the program is asked for", async () => {
  const folder = checkout({ npm: install, setup: "console.log(process.env.MLX_SERVE_BACKEND)" });
  const asked = async (...args: string[]) => text(launch(folder, "", ...args).stdout);
  expect(await asked("serve", "--backend", "cuda", "--port", "0")).toBe("cuda\n");
  expect(await asked("serve", "--backend=metal")).toBe("metal\n");
  // The program says what is wrong with it.
  expect(await asked("--backend", "cudas")).toBe(`${process.env.MLX_SERVE_BACKEND}\n`);
  expect(await asked("cuda", "tell me of --backend cuda")).toBe(
    `${process.env.MLX_SERVE_BACKEND}\n`,
  );
});

test("a signal to the launcher reaches the program", async () => {
  const folder = checkout({ npm: install });
  const source = `
    process.on("SIGTERM", () => { console.log("drained"); process.exit(0); });
    require("node:fs").writeFileSync("${folder}/ready", "");
    setInterval(() => {}, 1000);`;
  const child = launch(folder, source);
  while (!existsSync(join(folder, "ready"))) await Bun.sleep(10);
  child.kill("SIGTERM");
  expect(await text(child.stdout)).toBe("drained\n");
  expect(await child.exited).toBe(0);
});
