import { afterEach, expect, test } from "bun:test";
import { flagOf, readFlags } from "../../scripts/flags.ts";

const { argv } = process;
afterEach(() => {
  process.argv = argv;
});

function read(args: string[], allowPositionals?: boolean) {
  process.argv = [...argv.slice(0, 2), ...args];
  return readFlags({ kvHeads: 8, only: "", peer: true, json: false }, allowPositionals);
}

test("flags have the types and values of their defaults", () => {
  const defaults = { kvHeads: 8, only: "", peer: true, json: false, positionals: [] };
  expect(read([])).toEqual(defaults);
  const given = ["--kv-heads", "2", "--only=7", "--no-peer", "--json"];
  const expected = { kvHeads: 2, only: "7", peer: false, json: true };
  expect(read([...given, "a"], true)).toEqual({ ...expected, positionals: ["a"] });
  expect(flagOf("kvHeads")).toBe("--kv-heads");
});

test("what is no flag, or no number, is an error", () => {
  expect(() => read(["--kv-heads", "many"])).toThrow("--kv-heads takes a number");
  expect(() => read(["--heads", "1"])).toThrow("--heads");
  expect(() => read(["a"])).toThrow("'a'");
});
