import { expect, test } from "bun:test";
import { putBack, takeOut } from "../../../src/text/encoder/long-strings.ts";

const long = (letter: string) => letter.repeat(100_000);

test("long strings go out and come back to where they were", () => {
  const value = JSON.parse(
    JSON.stringify({ a: [long("x"), "short", 1, null], b: { c: long("y"), d: true } }).replace(
      '"d"',
      '"__proto__"',
    ),
  );
  const taken: string[] = [];
  const rest = takeOut(value, taken);
  expect(taken).toEqual([long("x"), long("y")]);
  expect(rest).toMatchObject({ a: [0n, "short", 1, null], b: { c: 1n } });
  const sent = structuredClone(rest);
  const back = putBack(sent, taken) as { b: object };
  expect(back).toEqual(value);
  expect(Object.keys(back.b)).toEqual(["c", "__proto__"]);
});
