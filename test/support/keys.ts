// Keys as a file of keys has them.
import { hashOf, type KeyEntry } from "../../src/keys/key-file.ts";

export function keyEntry(name: string, key: string, more: Partial<KeyEntry> = {}): KeyEntry {
  return {
    name,
    sha256: hashOf(key).toString("hex"),
    tier: "NORMAL",
    limits: {},
    created: "2025-01-01T00:00:00.000Z",
    ...more,
  };
}
