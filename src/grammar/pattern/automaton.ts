// Minimizes finite automata, so that text shared by several branches of an expression is compiled once.
import type { Range } from "./rules.ts";

/** A DFA. Its first state is the start state; an automaton without states accepts no text. */
export type Automaton = readonly State[];
/** A state of a DFA; the ranges of its edges do not overlap. */
export type State = { accepts: boolean; edges: readonly Edge<number>[] };
export type Edge<T> = { range: Range; target: T };

/** Maximum number of edges examined; an automaton that needs more is returned without minimizing it. */
const MAX_STEPS = 200_000;

/** Minimizes a DFA with Moore's algorithm: refines groups of equivalent states until they are stable. */
export function minimized(automaton: Automaton): Automaton {
  const edgeCount = automaton.reduce((sum, { edges }) => sum + edges.length + 1, 0);
  let steps = 0;
  let groups: number[] = automaton.map(({ accepts }) => Number(accepts));
  for (let count = new Set(groups).size; ; ) {
    steps += edgeCount;
    if (steps > MAX_STEPS) return automaton;
    const before = groups;
    const numbers = new Map<string, number>();
    groups = automaton.map((state, i) => {
      const key = `${before[i]} ${joinedEdges(state, before).join()}`;
      return numbers.getOrInsert(key, numbers.size);
    });
    if (numbers.size === count) break;
    count = numbers.size;
  }
  // The start state stays first: groups are numbered in order of their first states.
  const firsts = new Map(automaton.map((state, i) => [groups[i]!, state] as const).toReversed());
  return Array.from({ length: firsts.size }, (_, group) => {
    const { accepts, edges } = firsts.get(group)!;
    const moved = edges.map(({ range, target }) => ({ range, target: groups[target]! }));
    return { accepts, edges: moved };
  });
}

/** Returns the ranges of a state's edges and the groups they lead to; joins adjacent ranges to the same group. */
function joinedEdges({ edges }: Automaton[number], groups: readonly number[]): number[] {
  const sorted = edges.toSorted((a, b) => a.range[0] - b.range[0]);
  const joined: number[] = [];
  for (const { range, target } of sorted) {
    const [from, to] = range;
    const group = groups[target]!;
    const [, lastTo, lastGroup] = joined.slice(-3);
    if (lastTo === from - 1 && lastGroup === group) joined[joined.length - 2] = to;
    else joined.push(from, to, group);
  }
  return joined;
}
