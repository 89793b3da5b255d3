import { describe, expect, test } from "bun:test";
import { StopStrings } from "../../src/text/stop.ts";
import { draws } from "./corpus.ts";

/** What is sent for each chunk, and the stop string that ended the stream. */
function run(stops: string[], chunks: string[]): { sent: string[]; stopped: string | undefined } {
  const filter = new StopStrings(stops);
  const sent: string[] = [];
  for (const chunk of chunks) {
    const step = filter.push(chunk);
    sent.push(step.text);
    if (step.stopped !== undefined) return { sent, stopped: step.stopped };
  }
  sent.push(filter.flush());
  return { sent, stopped: undefined };
}

describe("a stop string", () => {
  test("ends the stream before itself", () => {
    expect(run(["END"], ["some END more"])).toEqual({ sent: ["some "], stopped: "END" });
  });

  test("that spans chunks never leaks, not even its first half", () => {
    expect(run(["END"], ["a E", "N", "D b"])).toEqual({ sent: ["a ", "", ""], stopped: "END" });
  });

  test("that is begun and not finished is sent as soon as that is clear", () => {
    expect(run(["END"], ["a E", "N", "O"])).toEqual({
      sent: ["a ", "", "ENO", ""],
      stopped: undefined,
    });
    expect(run(["END"], ["a EN"])).toEqual({ sent: ["a ", "EN"], stopped: undefined });
  });

  test("may overlap its own beginning", () => {
    expect(run(["aab"], ["a", "a", "a", "b"])).toEqual({ sent: ["", "", "a", ""], stopped: "aab" });
    expect(run(["\n\nQ"], ["x\n", "\n", "\nQ"])).toEqual({
      sent: ["x", "", "\n"],
      stopped: "\n\nQ",
    });
  });

  test("that ends first wins, and of those that end together the longest", () => {
    expect(run(["abcdef", "cd"], ["xabcdef"])).toEqual({ sent: ["xab"], stopped: "cd" });
    expect(run(["c", "bc", "xbc"], ["abc"])).toEqual({ sent: ["a"], stopped: "bc" });
  });

  test("of an emoji is found, and half of it is never sent", () => {
    expect(run(["👍🏽"], ["a👍", "🏽b"])).toEqual({ sent: ["a", ""], stopped: "👍🏽" });
    expect(run(["👍🏽"], ["a👍", "b"])).toEqual({ sent: ["a", "👍b", ""], stopped: undefined });
  });

  test("of half a character does not cut one", () => {
    expect(run(["\uD83D"], ["a👍b"])).toEqual({ sent: ["a👍b", ""], stopped: undefined });
  });

  test("that is empty is refused", () => {
    expect(() => new StopStrings([""])).toThrow("an empty stop string");
  });
});

test("without stop strings everything is sent at once", () => {
  expect(run([], ["a", "b"])).toEqual({ sent: ["a", "b", ""], stopped: undefined });
});

test("any text in any chunks is sent up to the first stop, and as early as can be", () => {
  const draw = draws(11);
  const word = (length: number) => Array.from({ length }, () => "ab"[draw(2)]).join("");
  for (let round = 0; round < 3_000; round++) {
    const stops = Array.from({ length: 1 + draw(3) }, () => word(1 + draw(5)));
    const text = word(draw(20));
    const filter = new StopStrings(stops);
    let seen = "";
    let sent = "";
    let stopped: string | undefined;
    for (let at = 0; at < text.length && stopped === undefined; ) {
      const chunk = text.slice(at, at + 1 + draw(4));
      at += chunk.length;
      const step = filter.push(chunk);
      seen += chunk;
      sent += step.text;
      stopped = step.stopped;
      if (stopped !== undefined) break;
      const open = stops.flatMap((stop) =>
        Array.from(stop, (_, length) => length).filter((length) =>
          seen.endsWith(stop.slice(0, length)),
        ),
      );
      expect(sent).toBe(seen.slice(0, seen.length - Math.max(0, ...open)));
    }
    // The first place where one ends; the longest that ends there.
    const ends = Array.from(text, (_, i) => text.slice(0, i + 1));
    const first = ends.find((head) => stops.some((stop) => head.endsWith(stop)));
    if (first === undefined) expect([sent + filter.flush(), stopped]).toEqual([text, undefined]);
    else {
      const fitting = stops.filter((stop) => first.endsWith(stop));
      const longest = fitting.reduce((a, b) => (b.length > a.length ? b : a));
      expect([sent, stopped]).toEqual([first.slice(0, first.length - longest.length), longest]);
    }
  }
});
