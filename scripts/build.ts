// Builds the executable: `npm run build` for this machine, as dist/mlx-serve, or
//   npm run build -- --target <name> [--outfile <file>]
// for another, as dist/mlx-serve-<name>. Inside it: Bun, the program, the Worker, the console, the native libraries,
// and the licenses of all these, which are also written to <file>.licenses.txt.
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, relative } from "node:path";
import { parseArgs } from "node:util";
import { libraryIn, nativeDirectory, target as targetHere } from "../ffi/native.ts";
import type { Target } from "../ffi/pins.ts";
import { consoleFiles } from "../src/http/owner/console-files.ts";
import { entrypoints } from "./build/entrypoints.ts";
import { carriedFiles, embeddedModule, textModule, textsModule } from "./build/libraries.ts";
import { thirdPartyLicenses } from "./build/licenses.ts";
import { macFaults } from "./build/mac-check.ts";
import { readMachO } from "./build/mach-o.ts";
import { makeNative } from "./setup/native.ts";

const root = join(import.meta.dir, "..");

const targets: Record<string, Target> = {
  "linux-x64": "linux-x64-cpu",
  "linux-x64-cuda": "linux-x64-cuda",
  "linux-arm64": "linux-arm64-cpu",
  "darwin-arm64": "darwin-arm64-metal",
};

try {
  const { values } = parseArgs({
    options: { target: { type: "string" }, outfile: { type: "string" } },
  });
  const { target: name, outfile } = values;
  const target = name === undefined ? targetHere() : targets[name];
  if (!target) throw new Error(`no target ${name}; available: ${Object.keys(targets).join(", ")}`);
  await build(target, outfile ?? join(root, "dist", name ? `mlx-serve-${name}` : "mlx-serve"));
} catch (error) {
  if (error instanceof AggregateError) console.error(error.errors.join("\n"));
  console.error(`mlx-serve: ${error instanceof Error ? error.message : error}`);
  process.exitCode = 1;
}

async function build(target: Target, outfile: string): Promise<void> {
  const [system, processor] = target.split("-");
  const directory = nativeDirectory(process.env, target);
  if (!existsSync(directory)) await makeNative(target);
  const library = libraryIn(directory, system);
  const staging = mkdtempSync(join(tmpdir(), "mlx-serve-build-"));
  try {
    const files = carriedFiles(directory, library);
    const licenses = await thirdPartyLicenses(directory, files);
    mkdirSync(dirname(outfile), { recursive: true });
    writeFileSync(`${outfile}.licenses.txt`, licenses);
    const replaced = {
      "ffi/embedded.ts": embeddedModule(directory, files, staging),
      "src/cli/licenses.ts": textModule("licenses", licenses, staging),
      "src/http/owner/console-files.ts": textsModule("consoleFiles", await consoleFiles(), staging),
    };
    await Bun.build({
      entrypoints,
      compile: {
        outfile,
        target: `bun-${system}-${processor}` as Bun.Build.CompileTarget,
        // The data folder of a server is not part of the program.
        autoloadDotenv: false,
        autoloadBunfig: false,
      },
      // JavaScriptCore bytecode starts four times as fast, but only on the system that built it.
      bytecode: `${system}-${processor}` === `${process.platform}-${process.arch}`,
      format: "esm",
      define: { EXECUTABLE_TARGET: JSON.stringify(target) },
      minify: { syntax: true, whitespace: true },
      plugins: [
        {
          name: "modules of the executable",
          setup(build) {
            for (const [path, contents] of Object.entries(replaced)) {
              const filter = new RegExp(`/${RegExp.escape(path)}$`);
              build.onLoad({ filter }, () => ({ contents, loader: "ts" }));
            }
          },
        },
      ],
    });
  } finally {
    rmSync(staging, { recursive: true });
  }
  if (system === "darwin" && process.platform !== "darwin") checkForMac(outfile, library);
  const megabytes = (statSync(outfile).size / 1e6).toFixed(0);
  console.log(`${relative(process.cwd(), outfile)} ${megabytes} MB`);
}

/** Checks a cross-built executable for macOS, which cannot run here. */
function checkForMac(outfile: string, library: string): void {
  const read = (path: string) => readMachO(readFileSync(path));
  const faults = macFaults({
    executable: read(outfile),
    libmlxc: read(library),
    libmlx: read(join(dirname(library), "libmlx.dylib")),
  });
  if (faults.length > 0) throw new Error(`${outfile} would not run:\n${faults.join("\n")}`);
}
