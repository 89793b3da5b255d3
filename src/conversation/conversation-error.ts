// A conversation that cannot be had as it is asked for. The codec translates the field's name into its API's.
import type { ErrorAnswer } from "../error-answer.ts";

export class ConversationError extends Error {
  override name = "ConversationError";
  /** A field of the conversation, or the request's own field where the codec named it (Constraint.param). */
  readonly field: string;
  /** What is wrong with it, such as "expected token ids below 100". */
  readonly problem: string;

  constructor(field: string, problem: string) {
    super(`${field}: ${problem}`);
    this.field = field;
    this.problem = problem;
  }
}

/** Only texts can be continued. */
export class NoChatTemplateError extends Error {
  override name = "NoChatTemplateError";
  readonly answer: ErrorAnswer = {
    status: 400,
    message: "The model has no chat template: use /v1/completions.",
    code: "no_chat_template",
    param: "model",
  };

  constructor() {
    super("the model has no chat template");
  }
}
