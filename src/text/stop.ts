// Ends a stream of text at the first stop string. Only text that may still become the start of one is
// held back.
import { StringMatcher } from "./string-matcher.ts";

export type StopStep = {
  /** What can be sent. */
  text: string;
  /** The stop string that ended the stream; neither it nor what follows is sent. */
  stopped?: string;
};

export class StopStrings {
  readonly #matcher: StringMatcher;
  #held = "";

  constructor(stops: readonly string[]) {
    if (stops.includes("")) throw new Error("an empty stop string would end every stream at once");
    // Half of a surrogate pair would cut a character in two.
    this.#matcher = new StringMatcher(stops.map((stop) => stop.toWellFormed()));
  }

  push(text: string): StopStep {
    const seen = this.#held + text;
    for (let i = this.#held.length; i < seen.length; i++) {
      const stopped = this.#matcher.take(seen[i]!);
      if (stopped === undefined) continue;
      this.#held = "";
      return { text: seen.slice(0, i + 1 - stopped.length), stopped };
    }
    const sent = seen.length - this.#matcher.held;
    this.#held = seen.slice(sent);
    return { text: seen.slice(0, sent) };
  }

  /** The stream has ended by itself: what was held back is text. */
  flush(): string {
    const held = this.#held;
    this.#held = "";
    this.#matcher.reset();
    return held;
  }
}
