// mlx-serve doctor: shows the machine as the engine sees it; with --self-test, verifies its computations.
import { parseArgs } from "node:util";
import { engineSetup } from "../../ffi/native.ts";
import { UsageError } from "../config/usage-error.ts";
import { EngineClient } from "../engine/client.ts";
import { readJob } from "../self-test/lines.ts";
import { describeEngine } from "./engine-report.ts";
import { print } from "./terminal/print.ts";

const options = {
  "self-test": { type: "boolean" },
  only: { type: "string" },
  report: { type: "string" },
  json: { type: "boolean" },
} as const;

export async function doctor(args: string[]): Promise<void> {
  const job = readJob(args);
  if (job) return await (await import("../self-test/child.ts")).runJob(job);
  const { values } = parseArgs({ args, options });
  const { only = "", report, json } = values;
  if (values["self-test"]) {
    const { runSelfTest } = await import("./self-test.ts");
    return await runSelfTest({ only, report, json });
  }
  if (only || report) throw new UsageError("--only and --report are for --self-test");
  const setup = engineSetup();
  const engine = await EngineClient.start(setup);
  try {
    const found = await engine.inspect(true);
    print(json ? JSON.stringify(found, null, 2) : describeEngine(found, setup.library));
  } finally {
    await engine.stop();
  }
}
