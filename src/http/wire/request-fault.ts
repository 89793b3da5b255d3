// A request that violates HTTP or a connection's limits.
import type { ErrorAnswer } from "../../error-answer.ts";

export class RequestFault extends Error {
  override name = "RequestFault";
  /** Status of the response, after which the connection closes. */
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }

  get answer(): ErrorAnswer {
    return { status: this.status, message: this.message };
  }
}
