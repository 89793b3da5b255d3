// The command line: one verb, then its arguments.
import { doctor } from "./cli/doctor.ts";
import { help } from "./cli/help.ts";
import { ls } from "./cli/ls.ts";
import { pull } from "./cli/pull.ts";
import { rm } from "./cli/rm.ts";
import { run } from "./cli/run.ts";
import { show } from "./cli/show.ts";
import { version } from "./cli/version.ts";

const verbs: Record<string, (args: string[]) => void | Promise<void>> = {
  doctor,
  run,
  pull,
  ls,
  show,
  rm,
  version,
  help,
};

const [verb = "doctor", ...args] = process.argv.slice(2);
try {
  const chosen = verbs[verb.replace(/^--/, "")];
  if (!chosen) throw new Error(`no verb ${verb}; there are ${Object.keys(verbs).join(", ")}`);
  await chosen(args);
} catch (error) {
  console.error(`mlx-serve: ${error instanceof Error ? error.message : error}`);
  process.exitCode = 1;
}
