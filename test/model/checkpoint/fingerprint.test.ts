import { expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openCheckpoint } from "../../../src/model/checkpoint/checkpoint.ts";
import { fingerprintOf } from "../../../src/model/checkpoint/fingerprint.ts";
import { writeChatModel } from "../../support/chat-model.ts";

function fingerprint(options: Parameters<typeof writeChatModel>[1]): string {
  const folder = mkdtempSync(join(tmpdir(), "fingerprint-"));
  writeChatModel(folder, options);
  const checkpoint = openCheckpoint(folder);
  const found = fingerprintOf(checkpoint);
  checkpoint.close();
  rmSync(folder, { recursive: true });
  return found;
}

test("is that of the files, wherever they are, and another for other numbers or settings", () => {
  const own = fingerprint({});
  expect(fingerprint({})).toBe(own);
  expect(fingerprint({ broken: true })).not.toBe(own);
  expect(fingerprint({ maxPositions: 100 })).not.toBe(own);
});
