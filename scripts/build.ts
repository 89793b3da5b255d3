// Builds the executable for this machine: `npm run build [-- <file>]`, dist/mlx-serve without one.
// Inside it: Bun, the program, the Worker, and the native libraries that set-up has made.
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join, relative } from "node:path";
import { nativeDirectory } from "../ffi/native.ts";

const root = join(import.meta.dir, "..");
const outfile = process.argv[2] ?? join(root, "dist", "mlx-serve");

const result = await Bun.build({
  entrypoints: [join(root, "src", "main.ts"), join(root, "src", "worker", "main.ts")],
  compile: { outfile },
  minify: { syntax: true, whitespace: true },
  plugins: [
    {
      name: "embedded native libraries",
      setup(build) {
        build.onLoad({ filter: /ffi\/embedded\.ts$/ }, () => ({
          contents: embeddedModule(nativeDirectory()),
          loader: "ts",
        }));
      },
    },
  ],
});
if (!result.success) throw new AggregateError(result.logs, "the build failed");
console.log(`${relative(process.cwd(), outfile)} ${(statSync(outfile).size / 1e6).toFixed(0)} MB`);

/** What takes the place of ffi/embedded.ts: each library as a file inside the executable. */
function embeddedModule(directory: string): string {
  const paths = readdirSync(directory, { recursive: true, encoding: "utf8" })
    .filter((path) => /\.(so|dylib|metallib)\b/.test(path))
    .sort();
  const imports = paths.map((path, i) => {
    const file = JSON.stringify(join(directory, path));
    return `import file${i} from ${file} with { type: "file" };`;
  });
  const entries = paths.map((path, i) => {
    const content = readFileSync(join(directory, path));
    const sha256 = new Bun.CryptoHasher("sha256").update(content).digest("hex");
    return `{ path: ${JSON.stringify(path)}, source: file${i}, sha256: "${sha256}" },`;
  });
  return [...imports, "export const embedded = [", ...entries, "];"].join("\n");
}
