// Reads a server's /metrics.

export class Figures {
  readonly #values: ReadonlyMap<string, number>;

  constructor(text: string) {
    const lines = text.matchAll(/^(mlx_serve_\w+)(?:\{(.*)\})? (\S+)$/gm);
    this.#values = new Map(
      [...lines].map(([, name, labels = "", value]) => [`${name} ${labels}`, Number(value)]),
    );
  }

  static async read(url: string, key: string): Promise<Figures> {
    const headers = { Authorization: `Bearer ${key}` };
    const response = await fetch(`${url}/metrics`, { headers });
    return new Figures(await response.text());
  }

  /** Sum over all labels, or those that contain this one. */
  total(name: string, label = ""): number {
    return [...this.#values].reduce((sum, [key, value]) => {
      return key.startsWith(`mlx_serve_${name} `) && key.includes(label) ? sum + value : sum;
    }, 0);
  }

  /** The upper bound of the highest bucket that has grown since. */
  highestBucket(name: string, since: Figures): number {
    let [highest, below] = [0, 0];
    for (const [key] of this.#values) {
      const bound = key.startsWith(`mlx_serve_${name}_bucket `) && /le="([^"]+)"/.exec(key)?.[1];
      if (!bound) continue;
      const upTo = this.total(`${name}_bucket`, `le="${bound}"`);
      const more = upTo - since.total(`${name}_bucket`, `le="${bound}"`);
      if (more > below) highest = bound === "+Inf" ? Number.POSITIVE_INFINITY : Number(bound);
      below = more;
    }
    return highest;
  }

  /** Leftovers of requests: one line per gauge that is not zero. */
  leftovers(): string[] {
    const figures: [string, string?][] = [
      ["requests_running"],
      ["requests_waiting"],
      ["requests_in_progress"],
      ["http_requests_admitted"],
      ["kv_blocks", 'state="held"'],
    ];
    return figures.flatMap(([name, label]) => {
      const held = this.total(name, label);
      return held === 0 ? [] : [`${name} ${label ?? ""} is ${held} in the end`];
    });
  }
}
