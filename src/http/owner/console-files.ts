// The console's script and style. A checkout bundles them when they are first asked for; in the executable another
// module takes this one's place, which has them inside.
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
