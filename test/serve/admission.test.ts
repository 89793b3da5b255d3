import { expect, test } from "bun:test";
import { Admission, type Entry } from "../../src/serve/admission.ts";

const enter = (admission: Admission) => admission.enter() as Entry;

test("a request is admitted up to the limit, and again when another has ended", () => {
  const admission = new Admission(2);
  const first = enter(admission);
  enter(admission);
  expect(admission.enter()).toBe("queue_full");
  first.leave();
  first.leave();
  expect(admission.count).toBe(1);
  expect(admission.enter()).toBeObject();
});

test("a client with a name leaves as many places free as it takes, and one without may take all", () => {
  const admission = new Admission(12);
  const taken = (client?: string) =>
    Array.from({ length: 12 }, () => admission.enter(client)).filter(
      (each) => each !== "queue_full",
    );
  const [first, ...others] = taken("a") as [Entry, ...Entry[]];
  expect(others).toHaveLength(5);
  expect(taken("b")).toHaveLength(3);
  expect(admission.enter("a")).toBe("queue_full");
  first.leave();
  first.leave();
  expect(admission.enter("a")).toBe("queue_full");
  for (const each of others) each.leave();
  expect(admission.enter("a")).toBeObject();
  expect(taken()).toHaveLength(8);
});

test("lines of batches take no places of other requests", () => {
  const admission = new Admission(4);
  const lines = Array.from({ length: 8 }, () => admission.enter("a", true) as Entry);
  expect([admission.count, admission.others]).toEqual([8, 0]);
  expect(admission.enter("a")).toBeObject();
  expect(admission.enter("a")).toBeObject();
  expect(admission.enter("a")).toBe("queue_full");
  expect(admission.enter("b")).toBeObject();
  for (const line of lines) line.leave();
  expect([admission.count, admission.others]).toEqual([3, 3]);
});

test("draining refuses requests, and returns when the last has ended", async () => {
  const admission = new Admission(8);
  const entries = [enter(admission), enter(admission)];
  let drained = false;
  const draining = admission.drain(60_000, new Error("too late")).then(() => {
    drained = true;
  });
  expect(admission.enter()).toBe("draining");
  expect(admission.phase).toBe("draining");
  entries[0]!.leave();
  await Bun.sleep(0);
  expect(drained).toBe(false);
  entries[1]!.leave();
  await draining;
  expect(drained).toBe(true);
});

test("requests that are too slow are aborted with the error", async () => {
  const admission = new Admission(8);
  const entry = enter(admission);
  const told = Promise.withResolvers<Error>();
  entry.onAbort = (error) => {
    told.resolve(error);
    entry.leave();
  };
  await admission.drain(1, new Error("too late"));
  expect((await told.promise).message).toBe("too late");
});

test("without requests, draining returns at once", async () => {
  const drained = new Admission(1).drain(60_000, new Error("too late")).then(() => "drained");
  expect(await Promise.race([drained, Bun.sleep(1000)])).toBe("drained");
});
