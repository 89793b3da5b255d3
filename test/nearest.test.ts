import { expect, test } from "bun:test";
import { nearest } from "../src/nearest.ts";

const names = ["serve", "help", "models", "default", "ls"];

test("the nearest name is found through a wrong, missing, added or swapped letter", () => {
  for (const [word, meant] of [
    ["serv", "serve"],
    ["sevre", "serve"],
    ["hlep", "help"],
    ["helpp", "help"],
    ["modles", "models"],
    ["defualt", "default"],
  ] as const) {
    expect(nearest(word, names)).toBe(meant);
  }
});

test("what is not near has none", () => {
  for (const word of ["list", "xy", "hello", "something"]) {
    expect(nearest(word, names)).toBeUndefined();
  }
});
