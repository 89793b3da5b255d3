// The command line: one verb, then its arguments.
import { doctor } from "./cli/doctor.ts";
import { help } from "./cli/help.ts";
import { version } from "./cli/version.ts";

const verbs: Record<string, (args: string[]) => void | Promise<void>> = {
  doctor,
  help,
  version,
};

const [verb = "doctor", ...args] = process.argv.slice(2);
try {
  const run = verbs[verb.replace(/^--/, "")];
  if (!run) throw new Error(`no verb ${verb}; there are ${Object.keys(verbs).join(", ")}`);
  await run(args);
} catch (error) {
  console.error(`mlx-serve: ${error instanceof Error ? error.message : error}`);
  process.exitCode = 1;
}
