import { describe, expect, test } from "bun:test";
import { RequestFault } from "../../../src/http/wire/request-fault.ts";
import {
  emptyLines,
  headLength,
  MAX_HEAD_BYTES,
  parseHead,
  type RequestHead,
} from "../../../src/http/wire/request-head.ts";

function parse(text: string): RequestHead {
  const bytes = Buffer.from(text, "latin1");
  const length = headLength(bytes, 0);
  if (length === undefined) throw new Error("the head has no end");
  return parseHead(bytes.subarray(0, length));
}

function statusOf(text: string): number {
  try {
    parse(text);
  } catch (error) {
    if (error instanceof RequestFault) return error.status;
    throw error;
  }
  return 200;
}

const get = (...lines: string[]) => ["GET / HTTP/1.1", "Host: a", ...lines, "", ""].join("\r\n");

test("a head has a method, a target, headers and a framing", () => {
  const { headers, ...head } = parse(
    "POST /v1/x?y=%20z HTTP/1.1\r\nhOST:a:80\r\nX-A: \t b c \t\r\nx-a:d\r\nContent-Length: 7\r\n\r\n",
  );
  expect(head).toEqual({
    method: "POST",
    target: "/v1/x?y=%20z",
    isHttp10: false,
    framing: { kind: "length", bytes: 7 },
    keepAlive: true,
    expectsContinue: false,
  });
  expect([...headers]).toEqual([
    ["content-length", "7"],
    ["host", "a:80"],
    ["x-a", "b c, d"],
  ]);
});

test("a connection is kept as the version and the header say", () => {
  const isKept = (version: string, connection: string) =>
    parse(`GET / ${version}\r\nHost: a\r\nConnection: ${connection}\r\n\r\n`).keepAlive;
  expect(isKept("HTTP/1.1", "")).toBe(true);
  expect(isKept("HTTP/1.1", "Keep-Alive, Upgrade")).toBe(true);
  expect(isKept("HTTP/1.1", "te,Close")).toBe(false);
  expect(isKept("HTTP/1.0", "")).toBe(false);
  expect(isKept("HTTP/1.0", "Keep-Alive")).toBe(true);
});

test("a target may have a host, which counts instead of the header", () => {
  const at = (target: string) => {
    const head = parse(`GET ${target} HTTP/1.1\r\nHost: a\r\n\r\n`);
    return [head.headers.get("host"), head.target];
  };
  expect(at("/x")).toEqual(["a", "/x"]);
  expect(at("//b/x")).toEqual(["a", "//b/x"]);
  expect(at("http://b:80/x?y")).toEqual(["b:80", "/x?y"]);
  expect(at("HTTPS://b")).toEqual(["b", "/"]);
  expect(at("http://b?y")).toEqual(["b", "/?y"]);
});

test("an expectation counts only with a body, and in HTTP/1.1", () => {
  const expect100 = "Expect: 100-Continue";
  expect(parse(get(expect100, "Content-Length: 1")).expectsContinue).toBe(true);
  expect(parse(get(expect100, "Transfer-Encoding: chunked")).expectsContinue).toBe(true);
  expect(parse(get(expect100)).expectsContinue).toBe(false);
  const old = `POST / HTTP/1.0\r\n${expect100}\r\nContent-Length: 1\r\n\r\n`;
  expect(parse(old).expectsContinue).toBe(false);
});

describe("what two servers could understand differently is rejected", () => {
  test.each([
    ["a bare line feed", "GET / HTTP/1.1\nHost: a\n\n"],
    ["a bare line feed in a header", get("x: a\nContent-Length: 5")],
    ["a bare carriage return", get("x: a\rContent-Length: 5")],
    ["a folded header", get("x: a", " b")],
    ["a first header that is folded", "GET / HTTP/1.1\r\n Host: a\r\n\r\n"],
    ["white space before the colon", get("Content-Length : 5")],
    ["no colon", get("Content-Length 5")],
    ["no name", get(": 5")],
    ["a NUL", get("x: a\0b")],
    ["a NUL in a name", get("x\0: a")],
    ["a name that is no token", get("x(y): a")],
    ["a name beyond ASCII", get("x\xe4: a")],
    ["no Host", "GET / HTTP/1.1\r\n\r\n"],
    ["two Hosts", get("Host: a")],
    ["two lengths", get("Content-Length: 5", "Content-Length: 6")],
    ["the same length twice", get("Content-Length: 5", "Content-Length: 5")],
    ["a list of lengths", get("Content-Length: 5, 5")],
    ["a signed length", get("Content-Length: +5")],
    ["a negative length", get("Content-Length: -5")],
    ["a length in hex", get("Content-Length: 0x5")],
    ["an empty length", get("Content-Length:")],
    ["a length beyond numbers", get("Content-Length: 99999999999999999999")],
    ["a length and chunks", get("Content-Length: 5", "Transfer-Encoding: chunked")],
    ["chunks in HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"],
    ["two spaces", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n"],
    ["a tab", "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n"],
    ["a space in the target", "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n"],
    ["a target beyond ASCII", "GET /\xe4 HTTP/1.1\r\nHost: a\r\n\r\n"],
    ["a target without a slash", "GET a HTTP/1.1\r\nHost: a\r\n\r\n"],
    ["a target of another protocol", "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n"],
    ["no target", "GET HTTP/1.1\r\nHost: a\r\n\r\n"],
    ["no version", "GET /\r\nHost: a\r\n\r\n"],
    ["a version in lower case", "GET / http/1.1\r\nHost: a\r\n\r\n"],
    ["another protocol", "\x16\x03\x01"],
  ])("%s", (_, text) => {
    expect(statusOf(text)).toBe(400);
  });
});

test.each([
  [501, get("Transfer-Encoding: gzip")],
  [501, get("Transfer-Encoding: gzip, chunked")],
  [501, get("Transfer-Encoding: chunked", "Transfer-Encoding: chunked")],
  [501, get("Transfer-Encoding: chunked, identity")],
  [501, "BREW / HTTP/1.1\r\nHost: a\r\n\r\n"],
  [501, "CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n"],
  [505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n"],
  [505, "GET / HTTP/0.9\r\n\r\n"],
  [417, get("Expect: tea")],
  [431, get(`x: ${"a".repeat(MAX_HEAD_BYTES)}`)],
  [431, "A".repeat(MAX_HEAD_BYTES)],
  [431, get(...Array.from({ length: 256 }, (_, i) => `x-${i}: a`))],
])("%d for what is not supported or too large", (status, text) => {
  expect(statusOf(text)).toBe(status);
});

test("a long run of white space takes no time", () => {
  const start = performance.now();
  parse(get(`x: a${" ".repeat(60_000)}b`, `Connection: a${" ".repeat(2000)}`));
  expect(performance.now() - start).toBeLessThan(500);
});

test("the end of a head is found in whatever pieces it comes", () => {
  const bytes = Buffer.from(`${get("x: a")}POST`);
  const whole = headLength(bytes, 0);
  expect(whole).toBe(bytes.length - 4);
  for (let cut = 1; cut < bytes.length; cut++) {
    const first = headLength(bytes.subarray(0, cut), 0);
    expect(first).toBe(cut < whole! ? undefined : whole!);
    if (cut < whole!) expect(headLength(bytes, cut - 1)).toBe(whole!);
  }
});

test("empty lines before a head are counted", () => {
  expect(emptyLines(Buffer.from("\r\n\r\nGET"))).toBe(4);
  expect(emptyLines(Buffer.from("\r"))).toBe(0);
  expect(emptyLines(Buffer.from("GET"))).toBe(0);
});
