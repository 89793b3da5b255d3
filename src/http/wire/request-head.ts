// Parses the head of a request: the request line and headers. Anything that two servers could interpret differently is
// rejected, so that no proxy in front can be tricked into request smuggling.
import { RequestFault } from "./request-fault.ts";

export type BodyFraming =
  | { kind: "none" }
  | { kind: "length"; bytes: number }
  | { kind: "chunked" };

export type RequestHead = {
  method: string;
  /** Path and query of the URL. */
  target: string;
  isHttp10: boolean;
  headers: Headers;
  framing: BodyFraming;
  /** Whether the client allows another request on the same connection. */
  keepAlive: boolean;
  /** Whether the client waits for 100 Continue before it sends the body. */
  expectsContinue: boolean;
};

export const MAX_HEAD_BYTES = 2 ** 16;
const MAX_HEADERS = 256;

const [CR, LF] = [0x0d, 0x0a];
const token = /^[\w!#$%&'*+.^`|~-]+$/;
const methods = new Set(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]);

/** Returns the length of empty lines before a head; some old clients send them after a body. */
export function emptyLines(bytes: Buffer): number {
  let length = 0;
  while (bytes[length] === CR && bytes[length + 1] === LF) length += 2;
  return length;
}

/**
 * Returns the length of the head, including the empty line at its end; undefined if it is incomplete. An earlier call
 * has checked the first `scanned` bytes.
 */
export function headLength(bytes: Buffer, scanned: number): number | undefined {
  // Fails early for other protocols, such as TLS, which may never send a line feed.
  if (scanned === 0 && bytes[0] !== CR && !token.test(String.fromCharCode(bytes[0]!))) {
    throw malformed("The request is not HTTP.");
  }
  for (let at = bytes.indexOf(LF, scanned); at !== -1; at = bytes.indexOf(LF, at + 1)) {
    if (at >= MAX_HEAD_BYTES) break;
    if (bytes[at - 1] !== CR) throw malformed("Lines have to end with CR LF.");
    if (bytes[at - 2] === LF) return at + 1;
  }
  if (bytes.length < MAX_HEAD_BYTES) return undefined;
  throw new RequestFault(431, `The headers are larger than ${MAX_HEAD_BYTES} bytes.`);
}

/** Parses a complete head, of the length found by `headLength`. */
export function parseHead(bytes: Buffer): RequestHead {
  const [first = "", ...lines] = bytes.toString("latin1", 0, bytes.length - 4).split("\r\n");
  const { method, target: wanted, isHttp10 } = parseFirstLine(first);
  const headers = parseHeaders(lines);
  const host = headers.get("host");
  if (host === null && !isHttp10) throw malformed("The Host header is missing.");
  const target = originTarget(method, wanted, headers);
  const expect = headers.get("expect")?.toLowerCase();
  if (expect !== undefined && expect !== "100-continue") {
    throw new RequestFault(417, "The only expectation that is met is 100-continue.");
  }
  const framing = framingOf(headers, isHttp10);
  const connection =
    headers
      .get("connection")
      ?.toLowerCase()
      .split(/[\t ,]+/) ?? [];
  return {
    method,
    target,
    isHttp10,
    headers,
    framing,
    keepAlive: isHttp10 ? connection.includes("keep-alive") : !connection.includes("close"),
    expectsContinue: expect !== undefined && !isHttp10 && framing.kind !== "none",
  };
}

function parseFirstLine(line: string): { method: string; target: string; isHttp10: boolean } {
  const [method = "", target = "", version = "", ...more] = line.split(" ");
  const [, major, minor] = /^HTTP\/(\d)\.(\d)$/.exec(version) ?? [];
  if (!token.test(method) || !/^[\x21-\x7e]+$/.test(target) || !major || more.length > 0) {
    throw malformed("The request's first line is malformed.");
  }
  if (major !== "1") throw new RequestFault(505, "The version of HTTP has to be 1.1 or 1.0.");
  if (!methods.has(method)) throw new RequestFault(501, "The method is not implemented.");
  return { method, target, isHttp10: minor === "0" };
}

function parseHeaders(lines: readonly string[]): Headers {
  if (lines.length > MAX_HEADERS) {
    throw new RequestFault(431, `There are more than ${MAX_HEADERS} headers.`);
  }
  const headers = new Headers();
  for (const line of lines) {
    const colon = line.indexOf(":");
    const name = line.slice(0, Math.max(colon, 0));
    // A name must be a token, so a line that starts with whitespace, or has it before the colon, is rejected too.
    if (!token.test(name) || /[^\t\x20-\x7e\x80-\xff]/.test(line)) {
      throw malformed("A header is malformed.");
    }
    if (name.length === 4 && name.toLowerCase() === "host" && headers.has("host")) {
      throw malformed("There is more than one Host header.");
    }
    headers.append(name, line.slice(colon + 1));
  }
  return headers;
}

/** Returns the target as path and query. A target in absolute form, as sent to proxies, sets the Host header. */
function originTarget(method: string, target: string, headers: Headers): string {
  if (target.startsWith("/")) return target;
  if (target === "*" && method === "OPTIONS") return "/*";
  const [, host, rest] = /^https?:\/\/([^/?]+)(.*)$/i.exec(target) ?? [];
  if (host === undefined) throw malformed("The request's target is malformed.");
  headers.set("host", host);
  return rest!.startsWith("/") ? rest! : `/${rest}`;
}

function framingOf(headers: Headers, isHttp10: boolean): BodyFraming {
  const [coding, length] = [headers.get("transfer-encoding"), headers.get("content-length")];
  if (coding !== null) {
    if (length !== null) throw malformed("Both Content-Length and Transfer-Encoding are given.");
    if (isHttp10) throw malformed("HTTP/1.0 has no Transfer-Encoding.");
    if (coding.toLowerCase() === "chunked") return { kind: "chunked" };
    throw new RequestFault(501, "The only Transfer-Encoding that is implemented is chunked.");
  }
  if (length === null) return { kind: "none" };
  // Repeated headers arrive joined by commas and are rejected too.
  if (!/^\d{1,15}$/.test(length)) throw malformed("The Content-Length header is malformed.");
  return Number(length) === 0 ? { kind: "none" } : { kind: "length", bytes: Number(length) };
}

function malformed(message: string): RequestFault {
  return new RequestFault(400, message);
}
