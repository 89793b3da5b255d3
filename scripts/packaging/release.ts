// Builds a release in dist/release: `npm run release [-- <owner/name>]`. The name is the GitHub repository of the
// Homebrew formula, which is omitted without it.
import { copyFileSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { run } from "../setup/run.ts";
import { formula } from "./homebrew.ts";
import { makePackages, NOTICES } from "./npm.ts";

const root = join(import.meta.dir, "..", "..");
const dist = join(root, "dist");
const release = join(dist, "release");
const repository = process.argv[2];

rmSync(release, { recursive: true, force: true });
mkdirSync(release, { recursive: true });
for (const target of ["linux-x64", "linux-x64-cuda", "linux-arm64", "darwin-arm64"]) {
  const build = [process.execPath, join(root, "scripts", "build.ts"), "--target", target];
  run(build, `the executable for ${target} could not be built`);
}
for (const folder of makePackages(dist, join(dist, "npm"))) {
  run(["npm", "pack", "--silent", "--pack-destination", release, folder], "npm could not pack");
  const target = basename(folder);
  if (target === "mlx-serve") continue;
  const archive = join(release, `mlx-serve-${target}.tar.gz`);
  const files = ["mlx-serve", "LICENSE", NOTICES];
  run(["tar", "-czf", archive, "-C", folder, ...files], "tar could not pack");
  copyFileSync(join(folder, NOTICES), join(release, `mlx-serve-${target}.licenses.txt`));
}
if (repository) writeFileSync(join(release, "mlx-serve.rb"), formula(repository, release));
