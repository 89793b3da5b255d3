import { describe, expect, test } from "bun:test";
import { BodyDecoder } from "../../../src/http/wire/body-decoder.ts";
import { RequestFault } from "../../../src/http/wire/request-fault.ts";
import type { BodyFraming } from "../../../src/http/wire/request-head.ts";
import { makeRandom } from "../../support/random.ts";

type Decoded = { payload: string; rest: string; isDone: boolean; status?: number };

/** What the decoder makes of these bytes, given in pieces that end at `cuts`. */
function decode(framing: BodyFraming, text: string, cuts: number[] = []): Decoded {
  const decoder = new BodyDecoder(framing);
  let [payload, rest] = ["", ""];
  try {
    for (const [i, cut] of [...cuts, text.length].entries()) {
      const piece = Buffer.from(rest + text.slice(i === 0 ? 0 : cuts[i - 1], cut), "latin1");
      const decoded = decoder.decode(piece);
      payload += decoded.payload.toString("latin1");
      rest = decoded.rest.toString("latin1");
      if (!decoder.isDone) expect(rest).toBe("");
    }
  } catch (error) {
    if (!(error instanceof RequestFault)) throw error;
    return { payload: "", rest: "", isDone: false, status: error.status };
  }
  return { payload, rest, isDone: decoder.isDone };
}

const chunked = { kind: "chunked" } as const;

test("a body ends after its length", () => {
  const framing = { kind: "length", bytes: 5 } as const;
  expect(decode(framing, "abcdeGET")).toEqual({ payload: "abcde", rest: "GET", isDone: true });
  expect(decode(framing, "abc")).toEqual({ payload: "abc", rest: "", isDone: false });
  expect(decode({ kind: "none" }, "GET")).toEqual({ payload: "", rest: "GET", isDone: true });
});

test("chunks are put together, without extensions and trailers", () => {
  const text = '3\r\nabc\r\n0A;x="y"\r\n0123456789\r\n0\r\nx-sum: 7\r\n\r\nGET';
  expect(decode(chunked, text)).toEqual({ payload: "abc0123456789", rest: "GET", isDone: true });
});

describe("malformed chunks are 400", () => {
  test.each([
    ["no size", "\r\nabc"],
    ["a size that is no number", "x\r\nabc"],
    ["a signed size", "+3\r\nabc\r\n"],
    ["a size with a prefix", "0x3\r\nabc\r\n"],
    ["a size beyond numbers", "fffffffffffff\r\n"],
    ["white space after a size", "3 4\r\nabc\r\n"],
    ["white space before a size", " 3\r\nabc\r\n"],
    ["a bare line feed after a size", "3\nabc\r\n0\r\n\r\n"],
    ["a bare line feed after a chunk", "3\r\nabc\n0\r\n\r\n"],
    ["a carriage return in an extension", "3;a\rb\r\nabc\r\n"],
    ["a chunk that is longer than its size", "3\r\nabcd\r\n0\r\n\r\n"],
    ["a long extension", `3;${"a".repeat(300)}\r\nabc\r\n`],
    ["an endless extension", `3;${"a".repeat(300)}`],
    ["long trailers", `0\r\n${"x: a\r\n".repeat(5000)}\r\n`],
    ["a bare line feed in a trailer", "0\r\nx: a\n\r\n"],
  ])("%s", (_, text) => {
    expect(decode(chunked, text).status).toBe(400);
  });
});

test("pieces make no difference, whatever the bytes", () => {
  const random = makeRandom(3);
  const letters = "0123aAfF;\r\n\r\n x";
  for (let round = 0; round < 3000; round++) {
    // Chunks, with a byte changed in two of three rounds.
    let text = "";
    for (let chunk = random.below(4); chunk > 0; chunk--) {
      const length = 1 + random.below(40);
      text += `${length.toString(16)}${random.chance(0.3) ? ";e" : ""}\r\n${"p".repeat(length)}\r\n`;
    }
    text += random.chance(0.5) ? "0\r\n\r\nrest" : "0\r\nx: y\r\n\r\n";
    if (random.chance(0.66)) {
      const at = random.below(text.length);
      text = text.slice(0, at) + letters[random.below(letters.length)] + text.slice(at + 1);
    }
    const cuts = Array.from({ length: random.below(8) }, () => random.below(text.length)).sort(
      (a, b) => a - b,
    );
    expect([text, cuts, decode(chunked, text, cuts)]).toEqual([text, cuts, decode(chunked, text)]);
  }
});
