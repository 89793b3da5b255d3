// Checks prompts against the context length, and explains a context shorter than the model's own.
import type { ModelInfo } from "../engine/protocol.ts";
import { type ErrorAnswer, sentence } from "../error-answer.ts";
import { TooLongError } from "../text/tokenizer/tokenizer.ts";

type Lengths = Pick<ModelInfo, "maxLength" | "ownLength" | "lengthLimit">;

/** Thrown if a prompt exceeds the context. */
export class ContextLengthError extends Error {
  override name = "ContextLengthError";
  readonly answer: ErrorAnswer = {
    status: 400,
    message: sentence(this.message),
    code: "context_length_exceeded",
    param: "prompt",
  };

  constructor(tokens: number | TooLongError, info: Lengths) {
    const count = tokens instanceof TooLongError ? `more than ${tokens.maxTokens}` : tokens;
    const cut = cutOf(info);
    super(
      `the model's maximum context length is ${info.maxLength} tokens, and the prompt has ${count}` +
        (cut === undefined ? "" : `; ${cut}`),
    );
  }
}

/** Returns the reason why the context is shorter than the model's own; undefined if it is not. */
export function cutOf({ ownLength, lengthLimit }: Lengths): string | undefined {
  switch (lengthLimit) {
    case undefined:
      return undefined;
    case "setting":
      return `--max-model-len cuts the model's own length of ${ownLength}`;
    case "memory":
      return `the memory for KV blocks cuts the model's own length of ${ownLength} (--kv-memory, --max-model-len auto)`;
  }
}

/** Returns the token count at which tokenizing stops: above the context, so that errors can state the length. */
export function countedTokens({ maxLength }: Lengths): number {
  return 2 * maxLength;
}

/** Throws if a prompt leaves no room for a token of the answer. */
export function checkLengths(prompts: readonly { readonly length: number }[], info: Lengths): void {
  const tooLong = prompts.find(({ length }) => length >= info.maxLength);
  if (tooLong) throw new ContextLengthError(tooLong.length, info);
}
