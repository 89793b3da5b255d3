import { afterAll } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Removed after the tests of the file or `describe` that asks for it. */
export function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "mlx-serve-test-"));
  afterAll(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}
