// Creates the npm packages, `npm run package:npm`: one per system from dist/mlx-serve-<system>, of which npm installs
// the matching one, and a small `mlx-serve` that runs it. The CUDA package matches the same systems as the plain one,
// so users install it explicitly.
import { chmodSync, copyFileSync, existsSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { description, license, version } from "../../package.json";

const root = join(import.meta.dir, "..", "..");
const systems = ["linux-x64", "linux-arm64", "darwin-arm64"];

/** The licenses of the executable's components. */
export const NOTICES = "THIRD_PARTY_LICENSES.txt";

/** The folders of the packages, ready for `npm pack` and `npm publish`; `mlx-serve` comes last. */
export function makePackages(dist: string, to: string): string[] {
  rmSync(to, { recursive: true, force: true });
  const built = [...systems, "linux-x64-cuda"].filter((name) =>
    existsSync(join(dist, `mlx-serve-${name}`)),
  );
  const folders = built.map((name) => {
    const [os, cpu] = name.split("-");
    const fits = { os: [os], cpu: [cpu], ...(os === "linux" && { libc: ["glibc"] }) };
    const folder = makePackage(to, `@mlx-serve/${name}`, fits);
    copyFileSync(join(dist, `mlx-serve-${name}`), join(folder, "mlx-serve"));
    chmodSync(join(folder, "mlx-serve"), 0o755);
    copyFileSync(join(dist, `mlx-serve-${name}.licenses.txt`), join(folder, NOTICES));
    return folder;
  });
  const main = makePackage(to, "mlx-serve", {
    type: "module",
    bin: { "mlx-serve": "npm-shim.mjs" },
    optionalDependencies: Object.fromEntries(
      systems.map((name) => [`@mlx-serve/${name}`, version]),
    ),
  });
  copyFileSync(join(import.meta.dir, "npm-shim.mjs"), join(main, "npm-shim.mjs"));
  copyFileSync(join(root, "README.md"), join(main, "README.md"));
  return [...folders, main];
}

function makePackage(to: string, name: string, rest: object): string {
  const folder = join(to, name);
  mkdirSync(folder, { recursive: true });
  const manifest = { name, version, description, license, ...rest };
  writeFileSync(join(folder, "package.json"), `${JSON.stringify(manifest, undefined, 2)}\n`);
  copyFileSync(join(root, "LICENSE"), join(folder, "LICENSE"));
  return folder;
}

if (import.meta.main) {
  const dist = join(root, "dist");
  for (const folder of makePackages(dist, join(dist, "npm"))) {
    console.log(relative(process.cwd(), folder));
  }
}
