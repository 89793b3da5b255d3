import { expect, test } from "bun:test";
import type { Automaton } from "../../src/grammar/pattern/automaton.ts";
import { minimized } from "../../src/grammar/pattern/automaton.ts";

const code = (char: string) => char.codePointAt(0)!;
const edge = (from: string, to: string, target: number) => ({
  range: [code(from), code(to)] as [number, number],
  target,
});
const final = { accepts: true, edges: [] };

test("states that accept the same texts become one", () => {
  // ab or cb, each with states of its own.
  const twice: Automaton = [
    { accepts: false, edges: [edge("a", "a", 1), edge("c", "c", 2)] },
    { accepts: false, edges: [edge("b", "b", 3)] },
    { accepts: false, edges: [edge("b", "b", 4)] },
    final,
    final,
  ];
  expect(minimized(twice)).toEqual([
    { accepts: false, edges: [edge("a", "a", 1), edge("c", "c", 1)] },
    { accepts: false, edges: [edge("b", "b", 2)] },
    final,
  ]);
});

test("neighbouring ranges to one state are as good as one range", () => {
  const split: Automaton = [
    { accepts: false, edges: [edge("a", "b", 1), edge("x", "x", 2)] },
    { accepts: false, edges: [edge("a", "c", 3), edge("d", "f", 4)] },
    { accepts: false, edges: [edge("d", "f", 3), edge("a", "c", 3)] },
    final,
    final,
  ];
  expect(minimized(split)).toHaveLength(3);
});

test("states that differ stay apart, and so do loops", () => {
  const apart: Automaton = [
    { accepts: false, edges: [edge("a", "a", 1), edge("b", "b", 2)] },
    { accepts: true, edges: [edge("a", "a", 1)] },
    { accepts: true, edges: [edge("a", "a", 3)] },
    final,
  ];
  expect(minimized(apart)).toEqual(apart);
  expect(minimized([])).toEqual([]);
});
