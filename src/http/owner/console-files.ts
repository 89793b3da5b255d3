// The console's script and style. A source checkout bundles them on first request; in the executable, a module that
// contains them replaces this one.
import { join } from "node:path";

export type ConsoleFiles = { script: string; style: string };

const folder = join(import.meta.dir, "..", "..", "console");

export const consoleEntrypoint = join(folder, "main.tsx");

export async function consoleFiles(): Promise<ConsoleFiles> {
  const { outputs } = await Bun.build({
    entrypoints: [consoleEntrypoint, join(folder, "style.css")],
    target: "browser",
    minify: true,
  });
  const text = (end: string) => outputs.find(({ path }) => path.endsWith(end))!.text();
  return { script: await text(".js"), style: await text(".css") };
}
