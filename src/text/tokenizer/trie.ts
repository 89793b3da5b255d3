// A prefix tree in one map: (node, UTF-16 code unit) -> node. Node 0 is the root.
export class Trie {
  readonly #edges = new Map<number, number>();
  #size = 1;

  /** Adds a text and returns its node. Nodes are numbered in order of insertion. */
  add(text: string): number {
    let node = 0;
    for (let i = 0; i < text.length; i++) {
      const unit = text.charCodeAt(i);
      let next = this.next(node, unit);
      if (next === undefined) {
        next = this.#size++;
        this.#edges.set(keyOf(node, unit), next);
      }
      node = next;
    }
    return node;
  }

  /** Returns the child of a node by code unit; undefined if no text continues with that unit. */
  next(node: number, unit: number): number | undefined {
    return this.#edges.get(keyOf(node, unit));
  }
}

function keyOf(node: number, unit: number): number {
  return node * 65_536 + unit;
}
