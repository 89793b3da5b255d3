// Batches with answers made up here: the order of lines, retries, and every moment at which a process can end.
import { afterEach, beforeEach, describe, expect, spyOn, test } from "bun:test";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  type Batch,
  type BatchOrder,
  isEnded,
  nowSeconds,
  type StoredFile,
} from "../../src/batch/batch.ts";
import type { LineRequest } from "../../src/batch/batch-run.ts";
import { Batches, type BatchesOptions } from "../../src/batch/batches.ts";
import { StoreBusyError } from "../../src/batch/database.ts";
import { BatchStore, newId } from "../../src/batch/store.ts";
import { chatLine, chatLines, jsonLines, parseLines } from "../support/batches.ts";
import { makeRandom } from "../support/random.ts";

let folder: string;
let opened: Batches[];
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "mlx-serve-batches-"));
  opened = [];
});
afterEach(async () => {
  for (const batches of opened) await batches.stop();
  rmSync(folder, { recursive: true, force: true });
});

type Answer = BatchesOptions["answer"];

const echo: Answer = async ({ body }) => ({ status: 200, body: Buffer.from(body).toString() });

function open(answer: Answer = echo, more: Partial<BatchesOptions> = {}): Batches {
  const batches = new Batches({
    folder,
    endpoints: ["/v1/chat/completions"],
    maxLines: 1000,
    maxLineBytes: 10_000,
    parse: async (bytes) => {
      try {
        return { value: JSON.parse(Buffer.from(bytes).toString()) };
      } catch {
        return { problem: "The line is not valid JSON." };
      }
    },
    places: () => 4,
    placesOf: () => 4,
    answer,
    onError: (_, error) => {
      throw error;
    },
    ...more,
  });
  opened.push(batches);
  return batches;
}

/** As if the process had been killed: what it would do next is never stored. */
async function kill(batches: Batches): Promise<void> {
  opened = opened.filter((each) => each !== batches);
  await batches.stop();
}

function addFile(store: BatchStore, text: string, more: Partial<StoredFile> = {}): string {
  const id = newId("file");
  writeFileSync(store.pathOf(id), text);
  const origin = { owner: "alice", filename: "in.jsonl", purpose: "batch" } as const;
  const times = { createdAt: nowSeconds(), expiresAt: undefined };
  store.addFile({ id, ...origin, ...times, bytes: text.length, ...more });
  return id;
}

function orderOf(inputFile: string): BatchOrder {
  return {
    owner: "alice",
    endpoint: "/v1/chat/completions",
    inputFile,
    window: "24h",
    expiresAt: nowSeconds() + 86_400,
    metadata: undefined,
    outputSeconds: undefined,
  };
}

function create(batches: Batches, lines: readonly object[] | string, more: object = {}): Batch {
  const text = typeof lines === "string" ? lines : jsonLines(lines);
  return batches.create({ ...orderOf(addFile(batches.store, text)), ...more });
}

async function end({ store }: Batches, { id }: Batch): Promise<Batch> {
  for (;;) {
    const batch = store.batch(id)!;
    if (isEnded(batch)) return batch;
    await Bun.sleep(1);
  }
}

const linesOf = ({ store }: Batches, file: string | undefined) =>
  file === undefined ? [] : parseLines(readFileSync(store.pathOf(file), "utf8"));
const idsOf = (batches: Batches, file: string | undefined) =>
  linesOf(batches, file).map((line) => line.custom_id);
const expected = (count: number) => chatLines(count).map((line) => line.custom_id);

describe("lines", () => {
  test("come out in the order of the input, whatever order they were answered in", async () => {
    const random = makeRandom(3);
    let [inFlight, most] = [0, 0];
    const batches = open(async (line) => {
      most = Math.max(most, ++inFlight);
      await Bun.sleep(random.below(5));
      inFlight -= 1;
      return await echo(line);
    });
    const batch = await end(batches, create(batches, chatLines(60)));
    expect(idsOf(batches, batch.outputFile)).toEqual(expected(60));
    expect(most).toBe(4);
    for (const [i, { response }] of linesOf(batches, batch.outputFile).entries()) {
      expect(response!.body).toEqual(chatLine(i + 1).body as Record<string, unknown>);
    }
  });

  test("of a large output are all there", async () => {
    const large = JSON.stringify("é".repeat(5000));
    const batches = open(async () => ({ status: 200, body: large }));
    const batch = await end(batches, create(batches, chatLines(300)));
    expect(idsOf(batches, batch.outputFile)).toEqual(expected(300));
    const { bytes } = batches.store.file("alice", batch.outputFile!)!;
    expect(readFileSync(batches.store.pathOf(batch.outputFile!)).length).toBe(bytes);
  });

  test("that the server is too busy for are tried until it is not, and failures three times", async () => {
    const tries = new Map<string, number>();
    const batches = open(async (line) => {
      const count = (tries.get(line.requestId) ?? 0) + 1;
      tries.set(line.requestId, count);
      const number = Number(line.requestId.split("-").at(-1));
      if (number === 2 && count <= 5) return { retryMs: 1 };
      if (number === 3) return { status: 500, body: "{}" };
      if (number === 4 && count <= 2) return { status: 500, body: "{}" };
      return await echo(line);
    });
    const batch = await end(batches, create(batches, chatLines(6)));
    expect([...tries].map(([id, count]) => [Number(id.split("-").at(-1)), count]).sort()).toEqual([
      [1, 1],
      [2, 6],
      [3, 3],
      [4, 3],
      [5, 1],
      [6, 1],
    ]);
    expect(idsOf(batches, batch.errorFile)).toEqual(["chat-3"]);
    expect(idsOf(batches, batch.outputFile)).toEqual(expected(6).filter((id) => id !== "chat-3"));
  });

  test("of one key do not keep those of another waiting", async () => {
    const owners: string[] = [];
    const waiting: (() => void)[] = [];
    const batches = open(async (line) => {
      owners.push(line.owner);
      await new Promise<void>((resolve) => {
        waiting.push(resolve);
        line.signal.addEventListener("abort", () => resolve());
      });
      return await echo(line);
    });
    const started = async (count: number) => {
      while (owners.length < count) await Bun.sleep(1);
    };
    create(batches, chatLines(50));
    await started(4);
    const second = create(batches, chatLines(10), { owner: "bob" });
    while (batches.store.batch(second.id)!.status !== "in_progress") await Bun.sleep(1);
    // One line at a time is answered, the oldest in flight, so that only who comes next is open.
    while (owners.length < 24) {
      waiting.shift()!();
      await started(owners.length + 1);
    }
    // Four of alice's were there first; from then on each key has half of the places.
    expect(owners.slice(4).filter((owner) => owner === "bob").length).toBe(10);
  });

  test("beyond the most that a batch may have are refused", async () => {
    const batches = open(echo, { maxLines: 5 });
    const batch = await end(batches, create(batches, chatLines(6)));
    const faults = [{ code: "too_many_requests", line: null }];
    expect(batch).toMatchObject({ status: "failed", faults });
  });

  test("of an input that was removed from the folder by hand fail", async () => {
    const gate = Promise.withResolvers<void>();
    const batches = open(async (line) => {
      await gate.promise;
      return await echo(line);
    });
    const created = create(batches, chatLines(6));
    while (batches.store.batch(created.id)!.status !== "in_progress") await Bun.sleep(1);
    await Bun.sleep(5);
    rmSync(batches.store.pathOf(created.inputFile));
    gate.resolve();
    const batch = await end(batches, created);
    expect(batch.counts).toEqual({ total: 6, completed: 4, failed: 2 });
    expect(linesOf(batches, batch.errorFile)[0]!.response).toMatchObject({ status_code: 500 });
  });
});

describe("a process that ends", () => {
  test("while lines are answered has answered no line twice", async () => {
    const answered = new Map<string, number>();
    const random = makeRandom(9);
    const answer: Answer = async (line) => {
      await Bun.sleep(random.below(4));
      if (!line.signal.aborted) {
        answered.set(line.requestId, (answered.get(line.requestId) ?? 0) + 1);
      }
      return await echo(line);
    };
    let batches = open(answer);
    const { id } = create(batches, chatLines(120));
    for (const wanted of [10, 50, 90]) {
      while (batches.store.batch(id)!.counts.completed < wanted) await Bun.sleep(1);
      await kill(batches);
      batches = open(answer);
    }
    const batch = await end(batches, batches.store.batch(id)!);
    expect(idsOf(batches, batch.outputFile)).toEqual(expected(120));
    expect([...answered.values()].every((count) => count === 1)).toBe(true);
    expect(answered.size).toBe(120);
  });

  /** A batch as a process has left it. */
  function left(prepare: (store: BatchStore, id: string) => void): string {
    const store = new BatchStore(folder);
    const { id } = store.addBatch(orderOf(addFile(store, jsonLines(chatLines(5)))));
    prepare(store, id);
    store.close();
    return id;
  }
  const line = (number: number) => {
    return { line: number, customId: `chat-${number}`, endpoint: "x", offset: 0, length: 1 };
  };

  test("while the input is checked checks it again", async () => {
    const id = left((store, id) => store.addLines(id, [line(1), line(7)]));
    const batches = open();
    const batch = await end(batches, batches.store.batch(id)!);
    expect(idsOf(batches, batch.outputFile)).toEqual(expected(5));
  });

  test("while the output is written writes it again, and leaves nothing of the first", async () => {
    const id = left((store, id) => {
      store.addLines(id, [line(1), line(2), line(3)]);
      store.advance(id, "in_progress", { counts: { total: 3, completed: 0, failed: 0 } });
      for (const n of [3, 1, 2]) store.answer(id, n, `{"custom_id":"chat-${n}"}`, n !== 2);
      store.advance(id, "finalizing");
      writeFileSync(store.pathOf("file-half"), "half of it");
    });
    const batches = open();
    const batch = await end(batches, batches.store.batch(id)!);
    const counts = { total: 3, completed: 2, failed: 1 };
    expect(batch).toMatchObject({ status: "completed", counts });
    expect(idsOf(batches, batch.outputFile)).toEqual(["chat-1", "chat-3"]);
    expect(idsOf(batches, batch.errorFile)).toEqual(["chat-2"]);
    expect(readdirSync(join(folder, "files")).sort()).toEqual(
      [batch.inputFile, batch.outputFile!, batch.errorFile!].sort(),
    );
  });

  test("twice with a line has the first answer to it", () => {
    const id = left((store, id) => {
      store.addLines(id, [line(1)]);
      for (const answer of ["first", "second"]) store.answer(id, 1, answer, true);
    });
    const store = new BatchStore(folder);
    expect(store.batch(id)!.counts.completed).toBe(1);
    store.close();
  });

  test("after a batch was cancelled ends it as cancelled", async () => {
    const batches = open(() => new Promise(() => {}), { places: () => 0 });
    const created = create(batches, chatLines(5));
    while (batches.store.batch(created.id)!.status !== "in_progress") await Bun.sleep(1);
    batches.store.advance(created.id, "cancelling");
    await kill(batches);
    const again = open();
    const batch = await end(again, created);
    expect(batch.status).toBe("cancelled");
    expect(idsOf(again, batch.errorFile)).toEqual(expected(5));
  });

  test("until the window is over has an expired batch at the next start", async () => {
    const batches = open(echo, { places: () => 0 });
    const created = create(batches, chatLines(5), { expiresAt: nowSeconds() + 1 });
    while (batches.store.batch(created.id)!.status !== "in_progress") await Bun.sleep(1);
    await kill(batches);
    await Bun.sleep(1100);
    const again = open(echo, { places: () => 0 });
    expect(await end(again, created)).toMatchObject({ status: "expired", counts: { failed: 5 } });
  });

  test("leaves the folder to the next, and as long as it runs to no other", async () => {
    const batches = open();
    expect(() => new BatchStore(folder)).toThrow(StoreBusyError);
    await kill(batches);
    new BatchStore(folder).close();
  });

  test("leaves no file that nobody knows of", async () => {
    const batches = open();
    const known = addFile(batches.store, "x");
    writeFileSync(batches.store.pathOf("file-half"), "x");
    await kill(batches);
    open();
    expect(readdirSync(join(folder, "files"))).toEqual([known]);
  });
});

test("expired files that cannot be removed stay until the next sweep", () => {
  const interval = spyOn(globalThis, "setInterval");
  const errors: unknown[] = [];
  const { store } = open(echo, { onError: (...told) => void errors.push(told) });
  const [sweep] = interval.mock.calls.at(-1) as unknown as [() => void];
  interval.mockRestore();
  const expired = addFile(store, "x", { expiresAt: nowSeconds() - 1 });
  const full = new Error("database or disk is full");
  spyOn(store, "removeUnused").mockImplementationOnce(() => {
    throw full;
  });
  sweep();
  expect(errors).toEqual([[undefined, full]]);
  expect(readdirSync(join(folder, "files"))).toEqual([expired]);
  sweep();
  expect(readdirSync(join(folder, "files"))).toEqual([]);
});

function throwFull(): never {
  throw Object.assign(new Error("database or disk is full"), { code: "SQLITE_FULL" });
}

describe("a disk that is full", () => {
  test("delays a batch until there is room, and loses nothing", async () => {
    const errors: unknown[] = [];
    const batches = open(echo, { onError: (_, error) => void errors.push(error) });
    const full = new Error("database or disk is full");
    const answer = spyOn(batches.store, "answer").mockImplementationOnce(() => {
      throw full;
    });
    const start = performance.now();
    const batch = await end(batches, create(batches, chatLines(5)));
    expect(performance.now() - start).toBeGreaterThan(1000);
    expect(errors).toEqual([full]);
    expect(batch.counts).toEqual({ total: 5, completed: 5, failed: 0 });
    expect(idsOf(batches, batch.outputFile)).toEqual(expected(5));
    answer.mockRestore();
  }, 30_000);
});

describe("an input that the server fails to read", () => {
  const quick = { retryMs: 1 };

  test.each([
    ["an error at each line", { parse: () => Promise.reject(new TypeError("a fault")) }],
    ["a file that is gone", {}],
  ])("ends its batch as failed after three tries: %s", async (name, more) => {
    const errors: unknown[] = [];
    const onError = (_: string | undefined, error: unknown) => void errors.push(error);
    const batches = open(echo, { ...quick, ...more, onError });
    const inputFile = addFile(batches.store, jsonLines(chatLines(5)));
    if (name === "a file that is gone") rmSync(batches.store.pathOf(inputFile));
    const batch = await end(batches, batches.create(orderOf(inputFile)));
    const faults = [{ code: "server_error", line: null }];
    expect(batch).toMatchObject({ status: "failed", faults, counts: { total: 0 } });
    expect(errors.length).toBe(3);
  });

  test("is read again until the disk has room for its lines", async () => {
    const errors: unknown[] = [];
    const onError = (_: string | undefined, error: unknown) => void errors.push(error);
    const batches = open(echo, { ...quick, onError });
    const addLines = spyOn(batches.store, "addLines");
    for (let i = 0; i < 10; i++) addLines.mockImplementationOnce(() => throwFull());
    const batch = await end(batches, create(batches, chatLines(5)));
    expect(batch).toMatchObject({ status: "completed", counts: { total: 5, completed: 5 } });
    expect(errors.length).toBe(10);
    addLines.mockRestore();
  });

  test("expires if the disk stays full", async () => {
    const batches = open(echo, { ...quick, onError: () => {} });
    const addLines = spyOn(batches.store, "addLines").mockImplementation(() => throwFull());
    const expiresAt = nowSeconds() + 1;
    const batch = await end(batches, create(batches, chatLines(5), { expiresAt }));
    expect(batch).toMatchObject({ status: "expired", counts: { total: 0 } });
    addLines.mockRestore();
  });

  test("is read as soon as the encoder is free", async () => {
    let tries = 0;
    const batches = open(echo, {
      parse: async (bytes) => {
        tries += 1;
        if (tries <= 10) return { retryMs: 1 };
        return { value: JSON.parse(Buffer.from(bytes).toString()) };
      },
    });
    const batch = await end(batches, create(batches, chatLines(5)));
    expect(batch).toMatchObject({ status: "completed", counts: { completed: 5 } });
    expect(tries).toBe(15);
  });
});

describe("what is kept", () => {
  test("of a batch that has ended is its input and its output, and no lines", async () => {
    const batches = open();
    for (const lines of [chatLines(700), "x\n"]) {
      const { id } = await end(batches, create(batches, lines));
      while (batches.store.lines(id, 0, 1).length > 0) await Bun.sleep(1);
    }
    expect(readdirSync(join(folder, "files")).length).toBe(3);
  });

  test("of all that have ended is the last thousand, and the rest is forgotten quietly", async () => {
    const gate = Promise.withResolvers<void>();
    const batches = open(async (line) => {
      await gate.promise;
      return await echo(line);
    });
    const { store } = batches;
    const first = create(batches, chatLines(1));
    for (let i = 0; i < 1002; i++) store.advance(store.addBatch(orderOf("")).id, "failed");
    expect(store.batches("alice", { limit: 2000 }).data.length).toBe(1001);
    gate.resolve();
    await batches.finished();
    expect(store.batch(first.id)).toBeUndefined();
    expect(store.batches("alice", { limit: 2000 }).data.length).toBe(1000);
  });

  test("is not what has expired, unless a batch reads it", async () => {
    const { store } = open(echo, { places: () => 0 });
    const past = nowSeconds() - 1;
    const [old, read] = [1, 2].map(() => addFile(store, "x", { expiresAt: past }));
    addFile(store, "x", { expiresAt: past + 100 });
    store.addBatch(orderOf(read!));
    store.removeUnused();
    expect(store.file("alice", old!)).toBeUndefined();
    expect(store.file("alice", read!)).toBeUndefined();
    expect(store.usage("alice").files).toBe(2);
  });
});

test("a line's signal aborts when its batch is cancelled, and it is not counted", async () => {
  const seen: LineRequest[] = [];
  const batches = open(async (line) => {
    seen.push(line);
    if (line.requestId.endsWith("-1")) return await echo(line);
    await new Promise<void>((resolve) => line.signal.addEventListener("abort", () => resolve()));
    return { status: 499, body: "{}" };
  });
  const created = create(batches, chatLines(20));
  while (batches.store.batch(created.id)!.counts.completed < 1 || seen.length < 5) {
    await Bun.sleep(1);
  }
  batches.cancel(batches.store.batch(created.id)!);
  const batch = await end(batches, created);
  const counts = { total: 20, completed: 1, failed: 19 };
  expect(batch).toMatchObject({ status: "cancelled", counts });
  expect(linesOf(batches, batch.errorFile).map(({ error }) => error?.code)).toEqual(
    Array.from({ length: 19 }, () => "batch_cancelled"),
  );
  expect(seen.length).toBe(5);
});
