import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { StoredResponses } from "../../src/serve/stored-responses.ts";

let folder: string;
let path: string;
let nowMs: number;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "mlx-serve-responses-"));
  path = join(folder, "below", "responses.sqlite");
  nowMs = 1_000_000;
});
afterEach(() => rmSync(folder, { recursive: true }));

const open = (maxBytes = 10_000) =>
  new StoredResponses({ path, maxBytes, maxAgeMs: 1000, now: () => nowMs });
const stored = (id: string, size = 0) => ({
  id,
  response: { id, text: "x".repeat(size) },
  input: [{ type: "message", content: "Hello" }],
});

describe("stored responses", () => {
  test("are found again, after a restart too", () => {
    const first = open();
    expect(existsSync(path)).toBeFalse();
    expect(first.save("alice", stored("a"))).toBeTrue();
    expect(first.find("alice", "a")).toEqual(stored("a"));
    first.close();
    const second = open();
    expect(second.find("alice", "a")).toEqual(stored("a"));
    expect(second.find("alice", "b")).toBeUndefined();
    second.close();
  });

  test("belong to their key", () => {
    const responses = open();
    responses.save("alice", stored("a"));
    expect(responses.find("bob", "a")).toBeUndefined();
    expect(responses.delete("bob", "a")).toBeFalse();
    expect(responses.find("alice", "a")).toBeDefined();
    responses.close();
  });

  test("are gone from the file once they are deleted", () => {
    const responses = open();
    responses.save("alice", { ...stored("a"), input: [{ text: "ossifrage" }] });
    expect(responses.delete("alice", "a")).toBeTrue();
    expect(responses.delete("alice", "a")).toBeFalse();
    expect(responses.find("alice", "a")).toBeUndefined();
    responses.close();
    expect(readFileSync(path).includes("ossifrage")).toBeFalse();
  });

  test("take no more than a key may store: the oldest go first", () => {
    const responses = open(3000);
    responses.save("bob", stored("other", 900));
    for (const id of ["a", "b", "c", "d"])
      expect(responses.save("alice", stored(id, 900))).toBeTrue();
    const left = ["a", "b", "c", "d"].filter((id) => responses.find("alice", id));
    expect(left).toEqual(["b", "c", "d"]);
    expect(responses.save("alice", stored("large", 3000))).toBeFalse();
    expect(responses.find("alice", "d")).toBeDefined();
    expect(responses.find("bob", "other")).toBeDefined();
    responses.close();
  });

  test("are not kept longer than their time", () => {
    const responses = open();
    responses.save("alice", stored("a"));
    nowMs += 1001;
    expect(responses.find("alice", "a")).toBeUndefined();
    responses.save("bob", stored("b"));
    nowMs -= 1001;
    expect(responses.find("alice", "a")).toBeUndefined();
    responses.close();
  });

  test("may be shared by two servers", () => {
    const [one, other] = [open(), open()];
    for (let i = 0; i < 20; i++) {
      one.save("alice", stored(`one${i}`));
      other.save("alice", stored(`other${i}`));
    }
    expect(one.find("alice", "other19")).toEqual(stored("other19"));
    expect(other.find("alice", "one0")).toEqual(stored("one0"));
    one.close();
    other.close();
  });
});
