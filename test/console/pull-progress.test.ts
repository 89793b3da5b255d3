// How long a pull will take, as the models' page says it.
import { expect, test } from "bun:test";
import { after, msLeft, type Pull } from "../../src/console/models/pull-progress.ts";

test("the time that is left is told by the speed so far, without what was there before", () => {
  const begun: Pull = {
    ...{ name: "org/model", status: "asking the hub", completed: 0, total: 0 },
    ...{ startMs: 0, startBytes: undefined, controller: new AbortController() },
  };
  expect(msLeft(begun, 500)).toBeUndefined();
  const status = "pulling";
  // It takes up a pull of which 600 bytes were there, a second after the question.
  let now = after(begun, { status, completed: 600, total: 1000 }, 1000);
  expect(msLeft(now, 1000)).toBeUndefined();
  now = after(now, { status, completed: 700, total: 1000 }, 3000);
  expect(msLeft(now, 3000)).toBe(6000);
  expect(after(now, { status: "verifying" }, 4000)).toMatchObject({ completed: 700, total: 1000 });
});
