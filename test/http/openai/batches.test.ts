// Batches over HTTP: what their lines may do to other requests, what ends them, and what is left of them.
import { afterAll, afterEach, beforeAll, describe, expect, spyOn, test } from "bun:test";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { StepReport } from "../../../src/engine/protocol.ts";
import type { Lease } from "../../../src/keys/limiter.ts";
import { BatchCaller, chatLine, chatLines, type RequestLine } from "../../support/batches.ts";
import { expectRefusal } from "../../support/fault-checks.ts";
import { keyEntry } from "../../support/keys.ts";
import { startTestServer, type TestServer } from "../../support/server.ts";

const MAX_BATCH = 4;
const folder = mkdtempSync(join(tmpdir(), "mlx-serve-batches-"));
let server: TestServer;
let alice: BatchCaller;
let bob: BatchCaller;
beforeAll(async () => {
  server = await startTestServer({
    args: [
      ...["--max-batch-size", String(MAX_BATCH), "--log-level", "debug", "--data-dir", folder],
      ...["--max-file-size", "256KiB", "--max-file-storage", "512KiB", "--max-files", "4"],
      ...["--max-batches", "2", "--max-body-size", "8KiB"],
    ],
    keys: {
      keys: [
        keyEntry("alice", "key-alice", { tier: "HIGH" }),
        keyEntry("bob", "key-bob", { tier: "HIGH" }),
        keyEntry("carol", "key-carol", { limits: { concurrent: 3 } }),
        keyEntry("dave", "key-dave", { limits: { tokens_per_minute: 60_000 } }),
      ],
    },
  });
  alice = new BatchCaller(server.get, "key-alice");
  bob = new BatchCaller(server.get, "key-bob");
});
afterEach(async () => {
  await server.settled();
  for (const key of ["alice", "bob", "carol", "dave"]) {
    const headers = { authorization: `Bearer key-${key}` };
    const { data } = (await (await server.get("/v1/files", { headers })).json()) as Files;
    for (const { id } of data) await new BatchCaller(server.get, `key-${key}`).remove(id);
  }
  // Nothing is left of files that are deleted, and of lines that have their output.
  expect(readdirSync(join(folder, "batches", "files"))).toEqual([]);
});
afterAll(async () => {
  await server.stop();
  rmSync(folder, { recursive: true, force: true });
});

type Files = { data: { id: string }[] };

const uploaded = async (caller: BatchCaller, content: string | readonly object[]) =>
  ((await (await caller.upload(content)).json()) as { id: string }).id;

describe("a line", () => {
  test("is LOW whatever its key is, and there are no more of them than a batch has places", async () => {
    const reports: StepReport[] = [];
    const step = spyOn(server.serving.metrics, "step").mockImplementation((report) => {
      reports.push(report);
    });
    const { id } = await alice.start(chatLines(40));
    expect(await alice.until(id)).toMatchObject({ status: "completed" });
    step.mockRestore();
    const requests = reports.map(({ requests = [] }) => requests);
    expect(new Set(requests.flat().map(({ priority }) => priority))).toEqual(new Set(["LOW"]));
    const most = Math.max(...requests.map((each) => each.length));
    expect(most).toBe(MAX_BATCH);
  });

  test("does not delay a request of a higher level by more than two steps", async () => {
    const { id } = await alice.start(chatLines(60, { max_tokens: 60, ignore_eos: true }));
    while ((await server.metric("mlx_serve_requests_running")) < MAX_BATCH) await Bun.sleep(2);
    const reports: StepReport[] = [];
    const step = spyOn(server.serving.metrics, "step").mockImplementation((report) => {
      reports.push(report);
    });
    const headers = { authorization: "Bearer key-bob" };
    const names = Array.from({ length: 6 }, (_, i) => `beside-${i}`);
    for (const name of names) {
      const asked = { prompt: "Beside", max_tokens: 2, ignore_eos: true };
      const init = { headers: { ...headers, "x-request-id": name } };
      expect((await server.post("/v1/completions", asked, init)).status).toBe(200);
    }
    step.mockRestore();
    expect(await alice.batch(id)).toMatchObject({ status: "in_progress" });
    for (const name of names) {
      const known = reports.findIndex(({ requests }) =>
        requests?.some((each) => each.name === name),
      );
      const begun = reports.findIndex(({ batch }) => batch?.some((row) => row.name === name));
      expect(known).toBeGreaterThanOrEqual(0);
      expect(begun - known).toBeLessThanOrEqual(2);
    }
    await alice.cancel(id);
    await alice.until(id);
  });

  test("leaves places to requests that are there already", async () => {
    const leaving = new AbortController();
    const init = { headers: { authorization: "Bearer key-bob" }, signal: leaving.signal };
    const endless = { prompt: "On and on", max_tokens: 4000, ignore_eos: true };
    const asked = [1, 2].map(() => server.post("/v1/completions", endless, init));
    while (server.serving.admission.others < 2) await Bun.sleep(1);
    let most = 0;
    const step = spyOn(server.serving.metrics, "step").mockImplementation(({ requests = [] }) => {
      most = Math.max(most, requests.filter(({ priority }) => priority === "LOW").length);
    });
    const { id } = await alice.start(chatLines(12));
    expect(await alice.until(id)).toMatchObject({ status: "completed" });
    step.mockRestore();
    expect(server.serving.admission.others).toBe(2);
    leaving.abort();
    await Promise.allSettled(asked);
    expect(most).toBe(MAX_BATCH - 2);
  });

  test("leaves a request at once to its key", async () => {
    const carol = new BatchCaller(server.get, "key-carol");
    const headers = { authorization: "Bearer key-carol" };
    let most = 0;
    const step = spyOn(server.serving.metrics, "step").mockImplementation(({ requests = [] }) => {
      most = Math.max(most, requests.filter(({ priority }) => priority === "LOW").length);
    });
    const { id } = await carol.start(chatLines(20));
    await carol.until(id, "in_progress");
    for (let i = 0; i < 3; i++) {
      const body = { prompt: "x", max_tokens: 1 };
      const beside = await server.post("/v1/completions", body, { headers });
      expect(beside.status).toBe(200);
    }
    expect((await carol.until(id)).status).toBe("completed");
    step.mockRestore();
    expect(most).toBe(2);
  });

  test("counts against the limits of its key, and waits if they are reached", async () => {
    const dave = new BatchCaller(server.get, "key-dave");
    const start = performance.now();
    const lease = server.serving.ring.named("dave")!.limiter.begin() as Lease;
    // A second's worth more than there is.
    lease.use(61_000);
    lease.end();
    const { id } = await dave.start(chatLines(12));
    const batch = await dave.until(id);
    expect(batch.request_counts).toEqual({ total: 12, completed: 12, failed: 0 });
    expect(performance.now() - start).toBeGreaterThan(990);
  }, 30_000);

  test("gets its body as it was written", async () => {
    const huge = JSON.stringify(chatLine(1)).replace('"temperature":0', '"temperature":1e999');
    const twice = JSON.stringify(chatLine(2)).replace('"body":', '"body":{"model":7},"body":');
    const spaced = JSON.stringify(chatLine(3)).replace('"body":', '"\\u0062ody" : \t').concat("  ");
    const { id } = await alice.start([huge, twice, spaced].join("\n"));
    const batch = await alice.until(id);
    expect(batch.request_counts).toEqual({ total: 3, completed: 2, failed: 1 });
    const [line] = await alice.lines(batch.error_file_id);
    expect(line).toMatchObject({
      custom_id: "chat-1",
      response: { status_code: 400, body: { error: { param: "temperature" } } },
    });
  });

  test("that is larger than a body may be is told as a client would be", async () => {
    const { id } = await alice.start([chatLine(1), chatLine(2, { user: "x".repeat(9000) })]);
    const batch = await alice.until(id);
    expect(batch.request_counts).toEqual({ total: 2, completed: 1, failed: 1 });
    const [line] = await alice.lines(batch.error_file_id);
    expect(line!.response).toMatchObject({ status_code: 413 });
  });
});

describe("an input file is refused, with the line's number, if", () => {
  const line = (number: number, more: object = {}) =>
    JSON.stringify({ ...chatLine(number), ...more });
  const good = line(1);
  const cases: Record<string, [content: string, fault: object]> = {
    "a line is not JSON": [`${good}\n{"custom_id": 1`, { line: 2, code: "invalid_json_line" }],
    "a line is not an object": [`${good}\n\n[]`, { line: 3, code: "invalid_json_line" }],
    "a line nests too deeply": [
      line(1, { body: {} }).replace("{}", `${"[".repeat(500)}${"]".repeat(500)}`),
      { line: 1, code: "invalid_json_line" },
    ],
    "a line is too large": [
      `${good}\n${line(2, { body: { user: "x".repeat(20_000) } })}`,
      { line: 2, code: "line_too_large" },
    ],
    "there is none": ["\n \n", { line: null, code: "empty_file" }],
    "an endpoint is unknown": [
      `${good}\n${line(2, { url: "/v1/moderations" })}`,
      { line: 2, param: "url", code: "invalid_url" },
    ],
    "an endpoint is not the batch's": [
      `${good}\n${line(2, { url: "/v1/completions" })}`,
      { line: 2, param: "url", code: "invalid_url" },
    ],
    "a method is not POST": [
      line(1, { method: "GET" }),
      { line: 1, param: "method", code: "invalid_method" },
    ],
    "a custom_id comes twice": [
      `${good}\r\n${line(2)}\r\n${good}\r\n`,
      { line: 3, param: "custom_id", code: "duplicate_custom_id" },
    ],
    "a custom_id is missing": [
      line(1, { custom_id: undefined }),
      { line: 1, param: "custom_id", code: "missing_required_parameter" },
    ],
    "a custom_id is no text": [
      line(1, { custom_id: 7 }),
      { line: 1, param: "custom_id", code: "invalid_value" },
    ],
    "a body is no object": [
      line(1, { body: "text" }),
      { line: 1, param: "body", code: "invalid_value" },
    ],
    "a body asks for a stream": [
      line(1, { body: { ...chatLine(1).body, stream: true } }),
      { line: 1, param: "body.stream", code: "invalid_value" },
    ],
    "there is more than one model": [
      `${good}\n${line(2, { body: { ...chatLine(2).body, model: "other" } })}`,
      { line: 2, param: "body.model", code: "mismatched_model" },
    ],
  };
  for (const [name, [content, fault]] of Object.entries(cases)) {
    test(name, async () => {
      const { id } = await alice.start(content);
      const batch = await alice.until(id);
      expect(batch).toMatchObject({ status: "failed", output_file_id: null, error_file_id: null });
      expect(batch.errors!.data[0]).toMatchObject(fault);
      expect(batch.errors!.data[0]!.message).toEndWith(".");
    });
  }

  test("a line is not UTF-8", async () => {
    const { id } = await alice.start(new Uint8Array(Buffer.from(`${good}\n"\xff"`, "latin1")));
    const { errors } = await alice.until(id);
    expect(errors!.data).toMatchObject([{ line: 2, code: "invalid_json_line" }]);
  });

  test("with all faults of the first hundred lines that have one", async () => {
    const { id } = await alice.start("x\n".repeat(150));
    const { errors } = await alice.until(id);
    expect(errors!.data.map((fault) => fault.line)).toEqual(
      Array.from({ length: 100 }, (_, i) => i + 1),
    );
  });
});

describe("a batch is refused if", () => {
  const cases: Record<string, [order: object, refusal: { param: string; code: string }]> = {
    "its endpoint is unknown": [
      { endpoint: "/v1/moderations" },
      { param: "endpoint", code: "invalid_value" },
    ],
    "its endpoint takes no lines": [
      { endpoint: "/tokenize" },
      { param: "endpoint", code: "invalid_value" },
    ],
    "its window is no time": [
      { completion_window: "soon" },
      { param: "completion_window", code: "invalid_value" },
    ],
    "its window is too long": [
      { completion_window: "15d" },
      { param: "completion_window", code: "invalid_value" },
    ],
    "its file is unknown": [
      { input_file_id: "file-unknown" },
      { param: "input_file_id", code: "file_not_found" },
    ],
    "its file is a path": [
      { input_file_id: "../batches.sqlite" },
      { param: "input_file_id", code: "file_not_found" },
    ],
  };
  for (const [name, [order, refusal]] of Object.entries(cases)) {
    test(name, async () => {
      const file = await uploaded(alice, chatLines(1));
      await expectRefusal(await alice.create(file, order), { status: 400, ...refusal });
    });
  }

  test("its key has too many that are unfinished", async () => {
    const file = await uploaded(alice, chatLines(50, { max_tokens: 200, ignore_eos: true }));
    const ids = [];
    for (let i = 0; i < 2; i++) {
      ids.push(((await (await alice.create(file)).json()) as { id: string }).id);
    }
    const refused = await alice.create(file);
    await expectRefusal(refused, { status: 400, code: "batch_limit_exceeded" });
    // Another key is not concerned.
    const { id } = await bob.start(chatLines(1));
    expect((await bob.until(id)).status).toBe("completed");
    for (const each of ids) await alice.cancel(each);
    for (const each of ids) expect((await alice.until(each)).status).toBe("cancelled");
  });
});

describe("a file is refused if", () => {
  const send = (body: string, headers: Record<string, string> = {}) =>
    server.get("/v1/files", {
      method: "POST",
      headers: { authorization: "Bearer key-alice", ...headers },
      body,
    });
  const form = (boundary: string, text: string) =>
    send(text.replaceAll("\n", "\r\n"), {
      "content-type": `multipart/form-data; boundary=${boundary}`,
    });
  const part = (name: string, value: string) =>
    `--b\nContent-Disposition: form-data; name="${name}"\n\n${value}\n`;
  const file = `--b\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\n\n{}\n`;

  test("it is not a form", async () => {
    const json = await send("{}", { "content-type": "application/json" });
    await expectRefusal(json, { status: 415 });
    const bare = await send("x", { "content-type": "multipart/form-data" });
    await expectRefusal(bare, { status: 415 });
  });

  test("the form is not complete", async () => {
    for (const text of ["", "x", "--b", `${file}`, `${part("purpose", "batch")}--b\n`]) {
      await expectRefusal(await form("b", text), { status: 400 });
    }
    const nameless = `--b\nContent-Type: text/plain\n\nx\n--b--`;
    await expectRefusal(await form("b", nameless), { status: 400 });
  });

  test("fields are missing, wrong or there twice", async () => {
    const purposeless = await form("b", `${file}--b--`);
    await expectRefusal(purposeless, { status: 400, param: "purpose" });
    const other = await form("b", `${part("purpose", "fine-tune")}${file}--b--`);
    await expectRefusal(other, { status: 400, param: "purpose" });
    const fileless = await form("b", `${part("purpose", "batch")}--b--`);
    await expectRefusal(fileless, { status: 400, param: "file" });
    const twice = await form("b", `${part("purpose", "batch")}${file}${file}--b--`);
    await expectRefusal(twice, { status: 400, param: "file" });
    const repeated = await form("b", `${part("purpose", "batch").repeat(2)}${file}--b--`);
    await expectRefusal(repeated, { status: 400 });
    const never = part("expires_after[anchor]", "created_at") + part("expires_after[seconds]", "1");
    const late = await form("b", `${part("purpose", "batch")}${never}${file}--b--`);
    await expectRefusal(late, { status: 400, param: "expires_after.seconds" });
    await expectRefusal(await alice.upload(""), { status: 400, param: "file", code: "empty_file" });
  });

  test("it is compressed", async () => {
    const headers = {
      "content-type": "multipart/form-data; boundary=b",
      "content-encoding": "gzip",
    };
    await expectRefusal(await send("x", headers), { status: 415 });
  });

  test("it is too large, and nothing of it is kept", async () => {
    const refused = await alice.upload("x".repeat(300_000));
    await expectRefusal(refused, { status: 413, param: "file" });
    expect(readdirSync(join(folder, "batches", "files"))).toEqual([]);
  });

  test("the files of its key are too large together, or too many", async () => {
    for (let i = 0; i < 2; i++) await uploaded(alice, "x".repeat(200_000));
    const refused = await alice.upload("x".repeat(200_000));
    await expectRefusal(refused, { status: 400, code: "storage_limit_exceeded" });
    for (let i = 0; i < 2; i++) await uploaded(alice, "x");
    const fifth = await alice.upload("x");
    await expectRefusal(fifth, { status: 400, code: "file_limit_exceeded" });
    // Another key has its own.
    expect((await bob.upload("x")).status).toBe(200);
  });

  test("its client leaves, and nothing of it is kept", async () => {
    const leaving = new AbortController();
    const body = new ReadableStream({
      start(controller) {
        controller.enqueue(`${part("purpose", "batch")}${file}`.replaceAll("\n", "\r\n"));
      },
    });
    const upload = fetch(`${server.url}/v1/files`, {
      method: "POST",
      headers: {
        authorization: "Bearer key-alice",
        "content-type": "multipart/form-data; boundary=b",
      },
      body,
      signal: leaving.signal,
    }).catch((error: Error) => error.name);
    await Bun.sleep(50);
    leaving.abort();
    expect(await upload).toBe("AbortError");
    while (readdirSync(join(folder, "batches", "files")).length > 0) await Bun.sleep(5);
    // The upload counts no longer either.
    for (let i = 0; i < 4; i++) await uploaded(alice, "x");
  });
});

test("a file has the name that its client gave it", async () => {
  const names: Record<string, string> = {
    'filename="a b.jsonl"': "a b.jsonl",
    "filename=a.jsonl": "a.jsonl",
    'filename="%22x%22.jsonl"': '"x".jsonl',
    'filename="../\\\\\\".jsonl"': '../\\".jsonl',
    "filename*=utf-8''na%C3%AFve.jsonl": "naïve.jsonl",
    'filename="naïve.jsonl"': "naïve.jsonl",
  };
  for (const [parameter, filename] of Object.entries(names)) {
    const body = [
      "a preamble",
      "--b",
      `Content-Disposition: form-data; name=file; ${parameter}`,
      "Content-Type: application/jsonl",
      "",
      "--b is not the end\n",
      "--b",
      'content-disposition: form-data; name="purpose"',
      "",
      "batch",
      "--b--",
      "an epilogue",
    ].join("\r\n");
    const headers = {
      authorization: "Bearer key-alice",
      "content-type": 'multipart/form-data; boundary="b"',
    };
    const response = await server.get("/v1/files", { method: "POST", headers, body });
    const file = (await response.json()) as { id: string };
    expect(file).toMatchObject({ filename });
    expect(await alice.content(file.id)).toBe("--b is not the end\n");
    await alice.remove(file.id);
  }
});

test("lists refuse what they do not take", async () => {
  for (const query of ["limit=0", "limit=101", "limit=x", "limit=1.5"]) {
    const refused = await server.get(`/v1/batches?${query}`);
    await expectRefusal(refused, { status: 400, param: "limit" });
  }
  await expectRefusal(await server.get("/v1/files?order=up"), { status: 400, param: "order" });
  const after = await server.get("/v1/files?after=file-unknown");
  expect(await after.json()).toMatchObject({ data: [], has_more: false });
});

test("a key sees its own files and batches, and no others; the owner reads all", async () => {
  const { id, input_file_id: input } = await alice.start(chatLines(2));
  const { output_file_id: output } = await alice.until(id);
  const headers = { authorization: "Bearer key-bob" };
  const missing = { status: 404 };
  for (const file of [input, output!]) {
    await expectRefusal(await server.get(`/v1/files/${file}`, { headers }), missing);
    await expectRefusal(await server.get(`/v1/files/${file}/content`, { headers }), missing);
    await expectRefusal(await bob.remove(file), missing);
    await expectRefusal(await bob.create(file), { status: 400, code: "file_not_found" });
  }
  await expectRefusal(await server.get(`/v1/batches/${id}`, { headers }), missing);
  const cancel = await server.get(`/v1/batches/${id}/cancel`, { headers, method: "POST" });
  await expectRefusal(cancel, missing);
  for (const path of ["/v1/files", "/v1/batches?limit=100"]) {
    const { data } = (await (await server.get(path, { headers })).json()) as Files;
    expect(data.map((each) => each.id)).not.toContain(id);
    expect(data.map((each) => each.id)).not.toContain(input);
  }
  // The server's owner reads all of them, and changes none.
  const owned = new BatchCaller(server.get);
  expect((await owned.batch(id)).output_file_id).toBe(output);
  expect(await (await server.get(`/v1/files/${output}`)).json()).toMatchObject({ id: output });
  expect(await owned.content(output!)).toBe(await alice.content(output!));
  await expectRefusal(await owned.remove(output!), missing);
  await expectRefusal(await owned.create(input), { status: 400, code: "file_not_found" });
  const cancelled = await server.get(`/v1/batches/${id}/cancel`, { method: "POST" });
  await expectRefusal(cancelled, missing);
  await expectRefusal(await server.get("/v1/batches/batch_absent"), missing);
  await expectRefusal(await server.get("/v1/files/file-absent/content"), missing);
  // An output is no input.
  const refused = await alice.create(output!);
  await expectRefusal(refused, { status: 400, param: "input_file_id" });
});

test("a batch whose input file is deleted goes on, and the file is gone when it has ended", async () => {
  const { id, input_file_id: input } = await alice.start(chatLines(40));
  await alice.until(id, "in_progress");
  expect((await alice.remove(input)).status).toBe(200);
  const headers = { authorization: "Bearer key-alice" };
  await expectRefusal(await server.get(`/v1/files/${input}`, { headers }), { status: 404 });
  await expectRefusal(await alice.create(input), { status: 400, code: "file_not_found" });
  const batch = await alice.until(id);
  expect(batch.request_counts).toEqual({ total: 40, completed: 40, failed: 0 });
  expect(readdirSync(join(folder, "batches", "files"))).toEqual([batch.output_file_id!]);
});

describe("a batch that ends early has a line for each of its input, in order", () => {
  const endless = { max_tokens: 2000, ignore_eos: true };
  const lines: RequestLine[] = [chatLine(1), ...chatLines(30, endless).slice(1)];

  async function check(id: string, status: string, code: string): Promise<void> {
    const batch = await alice.until(id);
    const { total, completed, failed } = batch.request_counts;
    const counted = { status: batch.status, total, all: completed + failed };
    expect(counted).toEqual({ status, total: 30, all: 30 });
    expect(completed).toBeGreaterThan(0);
    const output = await alice.lines(batch.output_file_id);
    const errors = await alice.lines(batch.error_file_id);
    expect([output.length, errors.length]).toEqual([completed, failed]);
    expect([...output, ...errors].map((line) => line.custom_id)).toEqual(
      lines.map((line) => line.custom_id),
    );
    for (const line of errors) expect(line).toMatchObject({ response: null, error: { code } });
  }

  test("when it is cancelled", async () => {
    const { id } = await alice.start(lines);
    while ((await alice.batch(id)).request_counts.completed < 1) await Bun.sleep(5);
    await alice.cancel(id);
    await check(id, "cancelled", "batch_cancelled");
  });

  test("when its window is over", async () => {
    const { id } = await alice.start(lines, { completion_window: "3s" });
    await check(id, "expired", "batch_expired");
  }, 30_000);
});
