// A request that breaks HTTP's rules or a connection's limits.

export class RequestFault extends Error {
  override name = "RequestFault";
  /** The status of the answer, after which the connection closes. */
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}
