import { describe, expect, test } from "bun:test";
import { type ApiError, apiErrorOf } from "../../../src/http/frame/errors.ts";
import { readJson as read } from "../../../src/http/frame/json-body.ts";
import { parseJson } from "../../../src/text/encoder/json-text.ts";

const LIMIT = 1024;

const readJson = (request: Request, limit: number) =>
  read(request, limit, async (bytes) => parseJson(bytes));

type Body = string | Uint8Array<ArrayBuffer> | ReadableStream<Uint8Array> | null;

function post(body: Body, headers: Record<string, string> = {}): Request {
  return new Request("http://localhost/", {
    method: "POST",
    body,
    headers: { "Content-Type": "application/json", ...headers },
  });
}

async function refusal(request: Request, limit = LIMIT): Promise<ApiError> {
  try {
    await readJson(request, limit);
  } catch (error) {
    return apiErrorOf(error);
  }
  throw new Error("it was taken");
}

/** An endless body, and how much of it was read. */
function endless(chunk: Uint8Array) {
  const seen = { sent: 0, cancelled: false };
  const stream = new ReadableStream<Uint8Array>(
    {
      pull(controller) {
        seen.sent += chunk.length;
        controller.enqueue(chunk);
      },
      cancel() {
        seen.cancelled = true;
      },
    },
    { highWaterMark: 0 },
  );
  return { stream, seen };
}

describe("a body", () => {
  test("of JSON is read", async () => {
    const value = { messages: [{ role: "user", content: 'a "quoted" [text} \\' }], n: 1 };
    expect(await readJson(post(JSON.stringify(value)), LIMIT)).toEqual(value);
  });

  test("is read from chunks that cut a character in two", async () => {
    const bytes = new TextEncoder().encode('{"a":"\u{1f600}"}');
    const stream = new ReadableStream<Uint8Array>({
      start(controller) {
        for (const byte of bytes) controller.enqueue(Uint8Array.of(byte));
        controller.close();
      },
    });
    expect(await readJson(post(stream), LIMIT)).toEqual({ a: "\u{1f600}" });
  });

  test.each([
    "application/json; charset=utf-8",
    "Application/JSON",
    "application/vnd.api+json",
    "application/json ;a=b",
  ])("may be sent as %s", async (type) => {
    expect(await readJson(post("{}", { "Content-Type": type }), LIMIT)).toEqual({});
  });

  test.each([
    "text/plain",
    "application/jsonp",
    "multipart/form-data",
    "text/json, application/json",
    "",
  ])("may not be sent as '%s'", async (type) => {
    expect(await refusal(post("{}", { "Content-Type": type }))).toMatchObject({ status: 415 });
  });

  test("needs a content type", async () => {
    const request = new Request("http://localhost/", {
      method: "POST",
      body: new TextEncoder().encode("{}"),
    });
    expect(await refusal(request)).toMatchObject({ status: 415 });
  });

  test.each([
    ["nothing", ""],
    ["an array", "[]"],
    ["null", "null"],
    ["a string", '"{}"'],
    ["a number", "1"],
    ["half of it", '{"a":'],
    ["two of them", "{}{}"],
    ["NaN", '{"temperature":NaN}'],
    ["a string that does not end", '{"a":"\\'],
    ["blanks", "   "],
  ])("that is %s is refused", async (_, body) => {
    const refused = { status: 400, type: "invalid_request_error", param: undefined };
    expect(await refusal(post(body))).toMatchObject(refused);
  });

  test("that is not there is refused", async () => {
    expect(await refusal(post(null))).toMatchObject({ status: 400 });
  });

  test("that is not UTF-8 is refused", async () => {
    const bytes = Uint8Array.of(...new TextEncoder().encode('{"a":"'), 0xff, 0x22, 0x7d);
    expect((await refusal(post(bytes))).message).toBe("The body is not valid UTF-8.");
  });

  test("that is not JSON is rejected without being quoted", async () => {
    expect((await refusal(post('{"a": xyzzy}'))).message).toBe("The body is not valid JSON.");
  });

  test("cannot change the prototypes of objects", async () => {
    const text = '{"__proto__":{"polluted":1},"constructor":{"prototype":{"polluted":1}}}';
    const body = await readJson(post(text), LIMIT);
    expect(Object.getPrototypeOf(body)).toBe(Object.prototype);
    expect(body.polluted).toBeUndefined();
    expect({}).not.toHaveProperty("polluted");
  });
});

describe("a body over the limit", () => {
  test("is rejected before it is read, if Content-Length says so", async () => {
    const { stream, seen } = endless(new Uint8Array(1));
    const request = post(stream, { "Content-Length": String(LIMIT + 1) });
    expect(await refusal(request)).toMatchObject({ status: 413 });
    expect(seen.sent).toBe(0);
  });

  test("is not read further, if Content-Length is absent", async () => {
    const { stream, seen } = endless(new Uint8Array(100));
    expect(await refusal(post(stream))).toMatchObject({ status: 413 });
    expect(seen.cancelled).toBeTrue();
    expect(seen.sent).toBeLessThan(2 * LIMIT);
  });

  test("begins one byte above it", async () => {
    const text = JSON.stringify({ a: "" });
    expect(await readJson(post(text), text.length)).toEqual({ a: "" });
    expect(await refusal(post(text), text.length - 1)).toMatchObject({ status: 413 });
  });
});

describe("a body that would take long to parse", () => {
  const large = 2 ** 25;
  const nested = (depth: number) => `{"a":${"[".repeat(depth - 1)}${"]".repeat(depth - 1)}}`;

  test("has 65,536 digits or spaces in a row at most", async () => {
    const most = 2 ** 16;
    const read = (body: string) => readJson(post(body), large);
    expect(await read(`{"a":${" ".repeat(most - 2)}1}`)).toEqual({ a: 1 });
    const text = " ".repeat(2 * most);
    expect(await read(JSON.stringify({ text }))).toEqual({ text });
    for (const run of ["9", " "]) {
      const { message } = await refusal(post(`{"a":1${run.repeat(most)}}`), large);
      expect(message).toContain("in a row");
    }
  });

  test("may nest 128 deep and no deeper", async () => {
    expect(await readJson(post(nested(128)), LIMIT)).toHaveProperty("a");
    expect((await refusal(post(nested(129)))).message).toContain("nests deeper than 128");
    expect((await refusal(post('{"a":'.repeat(129)))).message).toContain("nests deeper");
  });

  test("may have any number of brackets in a text", async () => {
    const text = `${"[{".repeat(1000)}\\"${'\\"['.repeat(1000)}`;
    expect(await readJson(post(JSON.stringify({ text })), large)).toEqual({ text });
  });

  test("is detected behind strings that end in backslashes", async () => {
    const body = `{"a":"\\\\","b":${"[".repeat(200)}`;
    expect((await refusal(post(body))).message).toContain("nests deeper");
  });

  test("has a million values at most", async () => {
    const ids = (count: number) => `{"prompt":[${"0,".repeat(count - 1)}0]}`;
    expect(await readJson(post(ids(1_000_000)), large)).toHaveProperty("prompt");
    expect((await refusal(post(ids(1_100_000)), large)).message).toContain("values");
  });

  test("has 131,072 names and texts at most", async () => {
    const texts = (count: number) => `{"input":[${'"",'.repeat(count - 2)}""]}`;
    expect(await readJson(post(texts(131_072)), large)).toHaveProperty("input");
    expect((await refusal(post(texts(131_073)), large)).message).toContain("strings");
  });

  test("is rejected much faster than it could be parsed", async () => {
    const request = post("[".repeat(2 ** 24));
    const start = performance.now();
    expect(await refusal(request, large)).toMatchObject({ status: 400 });
    expect(performance.now() - start).toBeLessThan(500);
  });
});

test.each([
  ["short", JSON.stringify({ prompt: "\n".repeat(1000) }), false],
  ["of many bytes", JSON.stringify({ prompt: "a".repeat(5 * 2 ** 20) }), true],
  ["of many escapes", JSON.stringify({ prompt: "\n".repeat(300_000) }), true],
  ["of many values", JSON.stringify({ prompt: Array(150_000).fill(0.1) }), true],
])("a body that is %s is parsed here only if it is short", async (_, body, isLong) => {
  let count = 0;
  const value = await read(post(body), 2 ** 24, async (bytes) => {
    count += 1;
    return parseJson(bytes);
  });
  expect(value).toEqual(JSON.parse(body));
  expect(count).toBe(isLong ? 1 : 0);
});
