// Finite automata, and the smallest one that accepts the same texts: texts that several branches of an expression
// have in common are then compiled once.
import type { Range } from "./rules.ts";

/** A DFA: its states, the first of which is the start; empty where it accepts no text. */
export type Automaton = readonly State[];
/** The ranges of its edges do not overlap. */
export type State = { accepts: boolean; edges: readonly Edge<number>[] };
export type Edge<T> = { range: Range; target: T };

/** Edges that may be looked at; an automaton that takes more stays as it is. */
const MAX_STEPS = 200_000;

/** States are told apart by what they accept after one more character, until that tells no more apart. */
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
  // The first state stays the first: groups are numbered in the order of their first states.
  const firsts = new Map(automaton.map((state, i) => [groups[i]!, state] as const).toReversed());
  return Array.from({ length: firsts.size }, (_, group) => {
    const { accepts, edges } = firsts.get(group)!;
    const moved = edges.map(({ range, target }) => ({ range, target: groups[target]! }));
    return { accepts, edges: moved };
  });
}

/** The ranges of a state and the groups they lead to, with neighbours of one group joined. */
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
