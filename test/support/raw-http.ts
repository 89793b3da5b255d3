// A client that sends just the bytes it is told to, and reads only while it is told to.
import { connect, type Socket } from "node:net";

export type RawResponse = { status: number; headers: Headers; body: string };

export class RawConnection {
  readonly #socket: Socket;
  readonly #ended = Promise.withResolvers<void>();
  #received = Buffer.alloc(0);
  #arrival = Promise.withResolvers<void>();

  private constructor(socket: Socket) {
    this.#socket = socket;
    socket.on("data", (bytes: Buffer) => {
      this.#received = Buffer.concat([this.#received, bytes]);
      this.#wake();
    });
    // What it was reset for shows in what was received.
    socket.on("error", () => {});
    socket.on("close", () => {
      this.#ended.resolve();
      this.#wake();
    });
  }

  static async open(port: number): Promise<RawConnection> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const socket = connect(port, "127.0.0.1", resolve);
    socket.once("error", reject);
    await promise;
    return new RawConnection(socket);
  }

  /** All that has come so far. */
  get received(): string {
    return this.#received.toString("latin1");
  }

  /** Settles when the connection is closed, by whomever. */
  get ended(): Promise<void> {
    return this.#ended.promise;
  }

  get isOpen(): boolean {
    return !this.#socket.destroyed;
  }

  /** Returns when the system has taken it; never, where nobody does. */
  async write(bytes: string | Uint8Array): Promise<void> {
    if (!this.isOpen || this.#socket.write(bytes)) return;
    const drained = Promise.withResolvers<void>();
    this.#socket.once("drain", drained.resolve);
    await Promise.race([drained.promise, this.ended]);
  }

  /** Waits for so many bytes, or the end. */
  async receive(count: number): Promise<void> {
    while (this.#received.length < count && this.isOpen) await this.#arrival.promise;
  }

  /** Sends no more, but goes on reading. */
  endWriting(): void {
    this.#socket.end();
  }

  stopReading(): void {
    this.#socket.pause();
  }

  goOnReading(): void {
    this.#socket.resume();
  }

  /** Goes away at once. */
  leave(): void {
    this.#socket.destroy();
  }

  #wake(): void {
    this.#arrival.resolve();
    this.#arrival = Promise.withResolvers<void>();
  }
}

/** The head of a request; a body makes it a POST of JSON. */
export function requestText(
  path: string,
  { method, headers = {}, body }: { method?: string; headers?: object; body?: object } = {},
): string {
  const text = body && JSON.stringify(body);
  const all = {
    Host: "localhost",
    ...(text && { "Content-Type": "application/json", "Content-Length": Buffer.byteLength(text) }),
    ...headers,
  };
  const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}`);
  const verb = method ?? (body ? "POST" : "GET");
  return [`${verb} ${path} HTTP/1.1`, ...lines, "", text ?? ""].join("\r\n");
}

/** Sends these bytes and reads until the server closes the connection. */
export async function exchange(port: number, bytes: string | Uint8Array): Promise<RawResponse> {
  const connection = await RawConnection.open(port);
  await connection.write(bytes);
  await connection.ended;
  return readResponse(connection.received);
}

/** Every final response of a connection, whether it has a length or chunks; interim ones are left out. */
export function readResponses(received: string): RawResponse[] {
  const responses: RawResponse[] = [];
  for (let rest = received; rest.length > 0; ) {
    const { status, headers, body } = readResponse(rest);
    const [text, after] = headers.has("transfer-encoding")
      ? takeChunks(body)
      : takeLength(body, status === 100 ? 0 : Number(headers.get("content-length") ?? body.length));
    if (status !== 100) responses.push({ status, headers, body: text });
    rest = after;
  }
  return responses;
}

function takeLength(body: string, length: number): [string, string] {
  if (body.length < length) throw new Error(`${body.length} of ${length} bytes came`);
  return [body.slice(0, length), body.slice(length)];
}

function takeChunks(body: string): [string, string] {
  let [text, rest] = ["", body];
  for (;;) {
    const [line = "", digits = ""] = /^([\da-f]+)\r\n/.exec(rest) ?? [];
    const [length, from] = [Number.parseInt(digits, 16), line.length];
    if (digits === "" || rest.length < from + length + 2) throw new Error("the chunks have no end");
    text += rest.slice(from, from + length);
    rest = rest.slice(from + length + 2);
    if (length === 0) return [text, rest];
  }
}

/** Of an answer whose body ends with the connection, or has its length told. */
export function readResponse(received: string): RawResponse {
  const end = received.indexOf("\r\n\r\n");
  const [first = "", ...lines] = received.slice(0, end).split("\r\n");
  const headers = new Headers(
    lines.map((line): [string, string] => {
      const colon = line.indexOf(":");
      return [line.slice(0, colon), line.slice(colon + 1).trim()];
    }),
  );
  return { status: Number(first.split(" ")[1]), headers, body: received.slice(end + 4) };
}
