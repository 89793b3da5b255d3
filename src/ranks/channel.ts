// A connection between the server and a rank. It carries frames of JSON, and of bytes for the engine Worker and the
// rank's compute thread. Both sides first prove that they know the group's secret.
import { createHmac, timingSafeEqual } from "node:crypto";
import type { Socket } from "node:net";

const JSON_FRAME = 0;
const BYTES_FRAME = 1;
const HEADER = 5;

/** Maximum frame length, before and after the peer has proved that it knows the secret. */
const MOST_UNPROVED = 4096;
const MOST = 2 ** 30;

export type ChannelEvents = {
  onJson(message: unknown): void;
  onBytes(bytes: Uint8Array): void;
  onClose(reason: string): void;
};

export class Channel {
  readonly #socket: Socket;
  readonly #events: ChannelEvents;
  #received: Buffer = Buffer.alloc(0);
  #isClosed = false;
  /** Whether the peer has proved that it knows the secret. */
  isProved = false;

  constructor(socket: Socket, events: ChannelEvents) {
    this.#socket = socket;
    this.#events = events;
    socket.setNoDelay(true);
    socket.on("data", (data: Buffer) => this.#receive(data));
    socket.on("error", (error) => this.close(error.message));
    socket.on("close", () => this.close("the connection was closed"));
  }

  sendJson(message: unknown): void {
    this.#send(JSON_FRAME, Buffer.from(JSON.stringify(message)));
  }

  sendBytes(bytes: Uint8Array): void {
    this.#send(BYTES_FRAME, bytes);
  }

  close(reason: string): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#socket.destroy();
    this.#events.onClose(reason);
  }

  #send(type: number, payload: Uint8Array): void {
    if (this.#isClosed) return;
    const header = Buffer.alloc(HEADER);
    header.writeUInt32LE(payload.length, 0);
    header[4] = type;
    this.#socket.write(Buffer.concat([header, payload]));
  }

  #receive(data: Buffer): void {
    this.#received = this.#received.length === 0 ? data : Buffer.concat([this.#received, data]);
    while (!this.#isClosed && this.#received.length >= HEADER) {
      const length = this.#received.readUInt32LE(0);
      if (length > (this.isProved ? MOST : MOST_UNPROVED)) {
        this.close("a frame is too long");
        return;
      }
      const end = HEADER + length;
      if (this.#received.length < end) return;
      const [type, payload] = [this.#received[4], this.#received.subarray(HEADER, end)];
      this.#received = this.#received.subarray(end);
      this.#handle(type!, payload);
    }
  }

  #handle(type: number, payload: Buffer): void {
    if (type === JSON_FRAME) this.#handleJson(payload.toString());
    else if (!this.isProved) this.close("the peer has not proved that it knows the secret");
    // The payload is copied, because the buffer belongs to the socket.
    else this.#events.onBytes(new Uint8Array(payload));
  }

  #handleJson(text: string): void {
    let message: unknown;
    try {
      message = JSON.parse(text);
    } catch {
      this.close("a frame is not JSON");
      return;
    }
    this.#events.onJson(message);
  }
}

/** Proves knowledge of the secret; `role` and `rank` prevent replaying one side's proof as the other's. */
export function proofOf(secret: string, role: "server" | "rank", rank: number, nonce: string) {
  return createHmac("sha256", secret).update(`${role} ${rank} ${nonce}`).digest("hex");
}

export function isProof(found: unknown, expected: string): boolean {
  const [a, b] = [Buffer.from(String(found)), Buffer.from(expected)];
  return a.length === b.length && timingSafeEqual(a, b);
}
