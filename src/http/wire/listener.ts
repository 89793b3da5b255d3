// The socket that clients connect to, and their connections. While file descriptors run short it is closed:
// one that is open and cannot be accepted from keeps the event loop busy.
import { Connection, type Service } from "./connection.ts";
import { firstReserved, nextNumber } from "./descriptors.ts";

export type ListenerOptions = Omit<Service, "isClosing"> & {
  hostname: string;
  /** 0 chooses a free one. */
  port: number;
};

/** Each takes some memory, even where descriptors are unlimited. */
const MAX_CONNECTIONS = 10_000;
const TICK_MS = 500;
/** A connection that has only just been opened is not closed to make room for another. */
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

  /** Throws if the address is in use. */
  constructor(options: ListenerOptions) {
    this.#options = options;
    this.#service = { ...options, isClosing: false };
    this.#socket = this.#listen(options.port);
    this.port = this.#socket.port;
    this.#timer = setInterval(() => this.#tick(), TICK_MS);
  }

  /** From now on every response is the last one of its connection. */
  closeAfterResponses(): void {
    this.#service.isClosing = true;
  }

  /** Accepts no more, and closes connections as soon as their responses are written, or after this time. */
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
      // The end of a client's input is not the end of the connection.
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
    // Ends the connections of clients whose machine has vanished.
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
    // Files may have used up descriptors too.
    if (!this.#hasRoom()) this.#stopAccepting();
    else if (!this.#socket) this.#acceptAgain();
  }

  /** Whether there is room for another connection, and for the socket to accept it from. */
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
    const reason = isFull ? "there are too many" : "file descriptors run short, raise `ulimit -n`";
    this.#options.log.warn({ connections: size }, `no connections are accepted for now: ${reason}`);
  }

  #acceptAgain(): void {
    try {
      this.#socket = this.#listen(this.port);
    } catch {
      // The next tick tries again.
    }
  }

  #closeIdle(minIdleMs: number): void {
    const beforeMs = performance.now() - minIdleMs;
    for (const { idleSinceMs, stream } of this.#connections) {
      if (idleSinceMs !== undefined && idleSinceMs <= beforeMs) stream.hangUp();
    }
  }
}
