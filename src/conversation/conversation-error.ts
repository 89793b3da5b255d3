// An invalid conversation. The codec translates the field's name into its API's.
import type { ErrorAnswer } from "../error-answer.ts";

export class ConversationError extends Error {
  override name = "ConversationError";
  /** Name of the invalid field: in `Conversation`, or in the API's request if the codec set it (`Constraint.param`). */
  readonly field: string;
  /** Fault of the field, such as "expected token ids below 100". */
  readonly problem: string;

  constructor(field: string, problem: string) {
    super(`${field}: ${problem}`);
    this.field = field;
    this.problem = problem;
  }
}

/** The model has no chat template, so it can only continue texts. */
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
