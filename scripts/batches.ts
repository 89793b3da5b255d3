// Runs a batch of 2,000 lines on a server that is killed three times: `npm run -s batches`. Fails unless every line is
// answered once, in order, with the bytes of an uninterrupted run. The tests do the same with fewer lines.
import { join } from "node:path";

const file = join(import.meta.dir, "../test/http/openai/batches-killed.test.ts");
const { exited } = Bun.spawn([process.execPath, "test", file], {
  env: { ...process.env, BATCH_LINES: "2000" },
  stdio: ["ignore", "inherit", "inherit"],
});
process.exitCode = await exited;
