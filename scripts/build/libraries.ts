// Compresses the native libraries for the executable, and generates the modules that replace ours to read embedded
// files.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";

/** Level 9 takes seconds; 19 takes minutes and saves 2%. */
const LEVEL = 9;

/** Compresses the files into `staging`, and returns the module's source. */
export function embeddedModule(
  directory: string,
  paths: readonly string[],
  staging: string,
): string {
  const imports: string[] = [];
  const entries: string[] = [];
  for (const [i, path] of paths.entries()) {
    const content = readFileSync(join(directory, path));
    const compressed = join(staging, `${i}.zst`);
    writeFileSync(compressed, Bun.zstdCompressSync(content, { level: LEVEL }));
    const sha256 = new Bun.CryptoHasher("sha256").update(content).digest("hex");
    imports.push(`import file${i} from ${JSON.stringify(compressed)} with { type: "file" };`);
    entries.push(`{ path: ${JSON.stringify(path)}, source: file${i}, sha256: "${sha256}" },`);
  }
  return [...imports, "export const embedded = [", ...entries, "];"].join("\n");
}

/** A module whose function `name` reads an embedded text on demand. */
export function textModule(name: string, text: string, staging: string): string {
  const { imports, values } = textImports({ [name]: text }, staging);
  return [...imports, `export const ${name} = () => ${values[name]};`].join("\n");
}

/** The same for several texts, as an object. */
export function textsModule(
  name: string,
  texts: Readonly<Record<string, string>>,
  staging: string,
): string {
  const { imports, values } = textImports(texts, staging);
  const fields = Object.entries(values).map(([field, value]) => `${field}: await ${value}`);
  return [...imports, `export const ${name} = async () => ({ ${fields.join(", ")} });`].join("\n");
}

function textImports(texts: Readonly<Record<string, string>>, staging: string) {
  const imports: string[] = [];
  const values: Record<string, string> = {};
  for (const [name, text] of Object.entries(texts)) {
    const path = join(staging, `${name}.txt`);
    writeFileSync(path, text);
    imports.push(`import ${name}File from ${JSON.stringify(path)} with { type: "file" };`);
    values[name] = `Bun.file(${name}File).text()`;
  }
  return { imports, values };
}

/** The libraries that `library` depends on, Metal's kernels, and the headers for CUDA's kernels. */
export function carriedFiles(directory: string, library: string): string[] {
  const paths = readdirSync(directory, { recursive: true, encoding: "utf8", withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(directory.length + 1));
  const libraries = paths.filter((path) => /\.(so|dylib)\b/.test(path));
  const reached = new Set(libraries.filter((path) => basename(path) === basename(library)));
  // In every format, a library contains the names of its dependencies.
  for (const path of reached) {
    const content = readFileSync(join(directory, path));
    for (const other of libraries) if (content.includes(basename(other))) reached.add(other);
  }
  const others = paths.filter((path) => /\.metallib$|\/include\/(cccl|cute|cutlass)\//.test(path));
  return [...reached, ...others].sort();
}
