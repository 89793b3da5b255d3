// Hashes a model, to tell whether two machines have the same one: its configuration, its tensors' names and shapes,
// and a few bytes of each tensor. Hashing all bytes would take minutes.
import { createHash } from "node:crypto";
import type { Checkpoint } from "./checkpoint.ts";

const SOME_BYTES = 64;

export function fingerprintOf({ config, tensors }: Checkpoint): string {
  const hash = createHash("sha256").update(JSON.stringify(config));
  for (const name of [...tensors.keys()].sort()) {
    const { shape, format, bytes, read } = tensors.get(name)!;
    const some = new Uint8Array(Math.min(SOME_BYTES, bytes));
    read(Math.floor((bytes - some.length) / 2), some);
    hash.update(`${name} ${format} ${shape}`).update(some);
  }
  return hash.digest("hex");
}
