// Ends a text stream at the first stop string. Only text that may be the start of a stop string is held back.
import { StringMatcher } from "./string-matcher.ts";

export type StopStep = {
  /** Text that can be sent. */
  text: string;
  /** The stop string that was found; neither it nor the text after it is sent. */
  stopped?: string;
};

export class StopStrings {
  readonly #matcher: StringMatcher;
  #held = "";

  constructor(stops: readonly string[]) {
    if (stops.includes("")) throw new Error("an empty stop string would end every stream at once");
    // Replaces lone surrogates in stop strings: finding half of a pair would split a character.
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

  /** Returns the held text once the stream has ended without a stop string. */
  flush(): string {
    const held = this.#held;
    this.#held = "";
    this.#matcher.reset();
    return held;
  }
}
