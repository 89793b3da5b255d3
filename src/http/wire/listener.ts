// The listening socket and its connections. While file descriptors run short the socket is closed: an open socket that
// cannot accept keeps the event loop busy.
import { Connection, type Service } from "./connection.ts";
import { firstReserved, nextNumber } from "./descriptors.ts";

export type ListenerOptions = Omit<Service, "isClosing"> & {
  hostname: string;
  /** Port to listen on; 0 chooses a free one. */
  port: number;
};

/** Maximum connections, which bounds memory even if file descriptors are unlimited. */
const MAX_CONNECTIONS = 10_000;
const TICK_MS = 500;
/** Minimum idle time after which a connection may be closed to make room for others. */
const MIN_IDLE_MS = 1000;
const WARN_AGAIN_MS = 600_000;

export class Listener {
  readonly #options: ListenerOptions;
  readonly #service: Service;
  readonly #connections = new Set<Connection>();
  readonly #firstReserved = firstReserved();
  readonly #timer: NodeJS.Timeout;
  readonly port: number;
  #socket: Bun.TCPSocketListener<Connection> | undefined;
  #warnedMs = Number.NEGATIVE_INFINITY;
  #onEmpty = () => {};

  /** Listens; throws if the address is in use. */
  constructor(options: ListenerOptions) {
    this.#options = options;
    this.#service = { ...options, isClosing: false };
    this.#socket = this.#listen(options.port);
    this.port = this.#socket.port;
    this.#timer = setInterval(() => this.#tick(), TICK_MS);
  }

  /** Makes each connection close after its current response. */
  closeAfterResponses(): void {
    this.#service.isClosing = true;
  }

  /** Stops accepting; closes each connection once its response is written, at the latest after `timeoutMs`. */
  async stop(timeoutMs: number): Promise<void> {
    this.closeAfterResponses();
    clearInterval(this.#timer);
    this.#socket?.stop();
    this.#closeIdle(0);
    const empty = Promise.withResolvers<void>();
    this.#onEmpty = empty.resolve;
    const cut = setTimeout(() => {
      for (const { stream } of this.#connections) stream.destroy();
    }, timeoutMs);
    if (this.#connections.size > 0) await empty.promise;
    clearTimeout(cut);
  }

  #listen(port: number): Bun.TCPSocketListener<Connection> {
    return Bun.listen<Connection>({
      hostname: this.#options.hostname,
      port,
      // A client that closes its side of the connection may still wait for a response.
      allowHalfOpen: true,
      socket: {
        open: (socket) => this.#open(socket),
        data: ({ data: { stream } }, bytes) => stream.received(bytes),
        end: ({ data: { stream } }) => stream.ended(),
        drain: ({ data: { stream } }) => stream.drained(),
        close: ({ data }) => this.#closed(data),
        error: ({ data: { stream } }) => stream.destroy(),
      },
    });
  }

  #open(socket: Bun.Socket<Connection>): void {
    // TCP keep-alive detects clients that vanish without closing the connection.
    socket.setKeepAlive(true, 60_000);
    socket.data = new Connection(socket, this.#service);
    this.#connections.add(socket.data);
    if (!this.#hasRoom()) this.#stopAccepting();
  }

  #closed(connection: Connection): void {
    connection.stream.closed();
    this.#connections.delete(connection);
    if (this.#connections.size === 0) this.#onEmpty();
  }

  #tick(): void {
    const nowMs = performance.now();
    for (const { stream } of this.#connections) stream.checkTime(nowMs);
    // Stops accepting if other open files have used up the file descriptors since the last check.
    if (!this.#hasRoom()) this.#stopAccepting();
    else if (!this.#socket) this.#acceptAgain();
  }

  /** Returns whether enough file descriptors are left for another connection and the listening socket. */
  #hasRoom(): boolean {
    const next = nextNumber(this.#socket ? 1 : 2);
    const isShort = next === undefined || next >= this.#firstReserved;
    return !isShort && this.#connections.size < MAX_CONNECTIONS;
  }

  #stopAccepting(): void {
    this.#socket?.stop();
    this.#socket = undefined;
    this.#closeIdle(MIN_IDLE_MS);
    const nowMs = performance.now();
    if (nowMs - this.#warnedMs < WARN_AGAIN_MS) return;
    this.#warnedMs = nowMs;
    const { size } = this.#connections;
    const isFull = size >= MAX_CONNECTIONS;
    const reason = isFull ? "too many are open" : "file descriptors run short, raise `ulimit -n`";
    this.#options.log.warn({ connections: size }, `not accepting connections: ${reason}`);
  }

  #acceptAgain(): void {
    try {
      this.#socket = this.#listen(this.port);
    } catch {
      // Listening is retried on the next tick.
    }
  }

  #closeIdle(minIdleMs: number): void {
    const beforeMs = performance.now() - minIdleMs;
    for (const { idleSinceMs, stream } of this.#connections) {
      if (idleSinceMs !== undefined && idleSinceMs <= beforeMs) stream.hangUp();
    }
  }
}
