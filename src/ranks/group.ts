// The server's group of ranks: local processes, which it starts, and processes of other hosts, which join. If one
// rank is lost, all others are ended and a new group is formed, because their state is useless without it.
import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { MessageChannel, type MessagePort } from "node:worker_threads";
import { type Mailbox, send } from "../engine/mailbox.ts";
import type { Division } from "../engine/protocol.ts";
import { Channel, isProof, proofOf } from "./channel.ts";
import { connectionVariables, memoryVariables } from "./connections.ts";
import {
  type FromRankProcess,
  type FromRankUser,
  type Hello,
  SILENCE_MS,
  type ToRankUser,
} from "./protocol.ts";
import { SshRank } from "./ssh.ts";

export type RankHost = {
  /** Address of the host for connections with other ranks, in both directions. */
  address: string;
  /** Whether this server starts the rank as a child process. */
  isLocal: boolean;
  /** Name of the host for ssh, if the server starts the rank. Any other rank that is not local joins by itself. */
  ssh?: string | undefined;
};

export type RankGroupOptions = {
  hosts: readonly RankHost[];
  division: Division;
  /** Authenticates ranks and the server to each other. */
  secret: string;
  version: string;
  /** Address at which ranks reach the server; port 0 picks a free one. */
  control: { hostname: string; port: number };
  /** Port of each rank for MLX's ring; by default free ports of this machine. */
  ringPorts?: readonly number[] | undefined;
  /** Command that starts a local rank; the verb `join` is appended. */
  command: readonly string[];
  env: Readonly<Record<string, string | undefined>>;
  /** Returns additional environment variables of one rank. */
  envOf?: (rank: number) => Readonly<Record<string, string>>;
  onChange?: (status: GroupStatus) => void;
};

export type RankState = "starting" | "connected" | "ready";

export type RankStatus = { rank: number; host: string; pid: number | undefined; state: RankState };

export type GroupStatus = {
  isFormed: boolean;
  /** Why the group has not formed: the last loss, and the missing ranks. */
  reason?: string | undefined;
  loss?: string | undefined;
  /** The transport between ranks, once connected. */
  connections?: string | undefined;
  ranks: RankStatus[];
};

type Member = {
  rank: number;
  host: RankHost;
  process?: Bun.Subprocess | undefined;
  channel?: Channel | undefined;
  heardMs: number;
  state: RankState;
  /** Usable memory of the rank, once it is ready. */
  usableBytes?: number | undefined;
};

const CHECK_MS = 500;
/** How long to wait for a process to exit after its connection has ended, to learn its exit code. */
const EXIT_MS = 300;
/** Delay before a new group is started after a loss. */
const AGAIN_MS = 1000;
/** How long local ranks may take to start. */
const START_MS = 30_000;

export class RankGroup {
  readonly #options: RankGroupOptions;
  readonly #folder = mkdtempSync(join(tmpdir(), "mlx-serve-ranks-"));
  readonly #timer: Timer;
  #members: Member[] = [];
  #server: Server | undefined;
  #user: { mailbox: Mailbox; port: MessagePort } | undefined;
  #isFormed = false;
  /** Whether any message was sent to the ranks since the group formed. */
  #isUsed = false;
  #isStopped = false;
  #sshRanks: SshRank[] = [];
  #loss: string | undefined;
  /** The rank that refuses a model, by model name. */
  readonly #refusals = new Map<string, number>();
  /** Path of the file that local ranks share memory through. */
  #memory: string | undefined;
  #connections: string | undefined;
  #startedMs = 0;
  #checkedMs = 0;

  private constructor(options: RankGroupOptions) {
    this.#options = options;
    this.#timer = setInterval(() => this.#check(), CHECK_MS);
  }

  static async start(options: RankGroupOptions): Promise<RankGroup> {
    const group = new RankGroup(options);
    try {
      await group.#listen();
      group.#startRanks();
      group.#startOverSsh();
      return group;
    } catch (error) {
      await group.stop();
      throw error;
    }
  }

  get size(): number {
    return this.#options.hosts.length;
  }

  get division(): Division {
    return this.#options.division;
  }

  get localSize(): number {
    return this.#options.hosts.filter(({ isLocal }) => isLocal).length;
  }

  /** Port at which ranks reach the server. */
  get controlPort(): number {
    const address = this.#server?.address();
    return typeof address === "object" && address ? address.port : 0;
  }

  status(): GroupStatus {
    const missing = this.#members.filter(({ state }) => state === "starting");
    const names = missing.map((member) => nameOf(member)).join(", ");
    const isAgain = this.#members.length === 0;
    const waiting = isAgain
      ? "restarting the ranks"
      : missing.length > 0
        ? `waiting for ${names}`
        : "connecting the ranks";
    return {
      isFormed: this.#isFormed,
      connections: this.#connections,
      loss: this.#loss,
      reason: this.#isFormed ? undefined : [this.#loss, waiting].filter(Boolean).join("; "),
      ranks: this.#members.map(({ rank, host, process, state }) => {
        return { rank, host: host.address, pid: process?.pid, state };
      }),
    };
  }

  /** Returns why the ranks cannot compute this model, if one of them refuses it. */
  refusalOf(model: string): string | undefined {
    const member = this.#members[this.#refusals.get(model) ?? -1];
    return member && `${nameOf(member)} has different model files, or cannot read them`;
  }

  /** Creates the mailbox of a new engine Worker and closes the previous Worker's. */
  connect(): Mailbox {
    this.#user?.port.close();
    this.#user = undefined;
    this.#refusals.clear();
    // Restart the ranks to free the models of the previous Worker.
    if (this.#isFormed && this.#isUsed) this.#lose("the engine was restarted");
    const { port1, port2 } = new MessageChannel();
    const arrivals = new SharedArrayBuffer(4);
    this.#user = { mailbox: { port: port1, arrivals }, port: port1 };
    port1.on("message", (message: FromRankUser) => this.#hearUser(message));
    if (this.#isFormed) this.#tellFormed();
    return { port: port2, arrivals };
  }

  #hearUser(message: FromRankUser): void {
    if (message.kind === "refused") {
      if (message.rank === undefined) this.#refusals.delete(message.model);
      else this.#refusals.set(message.model, message.rank);
    } else if (!this.#isFormed) return;
    else if (message.kind === "giveUp") this.#lose(message.reason);
    else {
      this.#isUsed = true;
      for (const { channel } of this.#members) channel?.sendBytes(message.bytes);
    }
  }

  async stop(): Promise<void> {
    if (this.#isStopped) return;
    this.#isStopped = true;
    clearInterval(this.#timer);
    this.#user?.port.close();
    await this.#endRanks();
    await Promise.all(this.#sshRanks.map((each) => each.stop()));
    this.#server?.close();
    rmSync(this.#folder, { recursive: true, force: true });
  }

  async #listen(): Promise<void> {
    const { hostname, port } = this.#options.control;
    const server = createServer((socket) => this.#accept(socket));
    this.#server = server;
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(port, hostname, () => resolve());
    });
  }

  #startRanks(): void {
    const { hosts } = this.#options;
    this.#startedMs = Date.now();
    this.#members = hosts.map((host, rank) => {
      return { rank, host, heardMs: Date.now(), state: "starting" as const };
    });
    const variables = this.#connectionVariables();
    for (const member of this.#members) {
      if (member.host.isLocal) member.process = this.#spawn(member, variables);
    }
    this.#changed();
  }

  /** Starts ranks on hosts over ssh. Called once: if lost, these ranks join again by themselves. */
  #startOverSsh(): void {
    const { hosts, secret } = this.#options;
    const addresses = hosts.map(({ address }) => address);
    this.#sshRanks = hosts.flatMap((host, rank) => {
      if (host.ssh === undefined) return [];
      const invitation = { addresses, rank, port: this.controlPort, secret };
      return new SshRank(host.ssh, invitation, (reason) => {
        if (this.#isStopped || this.#isFormed) return;
        this.#loss = `${nameOf({ rank, host })}: ${reason}`;
        this.#changed();
      });
    });
  }

  #connectionVariables(): Record<string, string> {
    const { hosts, ringPorts: ports = freePorts(hosts.length) } = this.#options;
    const addresses = hosts.map(({ address }) => address);
    const variables = connectionVariables(join(this.#folder, "ring.json"), { addresses, ports });
    if (this.localSize < this.size) return variables;
    const memory = memoryVariables();
    this.#memory = memory.MLX_SERVE_RANK_MEMORY;
    return { ...variables, ...memory };
  }

  #spawn(member: Member, variables: Record<string, string>): Bun.Subprocess {
    const { command, env, secret, control } = this.#options;
    const { rank } = member;
    const server = `${control.hostname}:${this.controlPort}`;
    const [program, ...args] = command as [string, ...string[]];
    return Bun.spawn([program, ...args, "join"], {
      env: {
        ...env,
        ...this.#options.envOf?.(rank),
        ...variables,
        ...rankVariables({ rank, server, secret }),
      },
      stdio: ["ignore", "inherit", "inherit"],
      onExit: () => void this.#leave(member, "the process exited"),
    });
  }

  #accept(socket: Socket): void {
    const nonce = randomBytes(16).toString("hex");
    let member: Member | undefined;
    const channel: Channel = new Channel(socket, {
      onJson: (message) => {
        const from = message as FromRankProcess;
        if (!member) member = this.#greet(channel, from as Hello, nonce);
        else this.#hear(member, from);
      },
      onBytes: (bytes) => {
        if (!member || member.channel !== channel) return;
        member.heardMs = Date.now();
        this.#tell({ kind: "message", rank: member.rank, bytes });
      },
      onClose: (reason) => {
        if (member?.channel === channel) void this.#leave(member, reason);
      },
    });
    channel.sendJson({ kind: "challenge", nonce });
  }

  /** Handles a rank's end; first waits briefly for its exit code, which says more than its closed connection. */
  async #leave(member: Member, reason: string): Promise<void> {
    if (member.process) await Promise.race([member.process.exited, Bun.sleep(EXIT_MS)]);
    if (!this.#members.includes(member)) return;
    const { exitCode, signalCode } = member.process ?? {};
    const signal = signalCode && `was ended by signal ${signalCode}`;
    const code = exitCode == null ? undefined : `exited with code ${exitCode}`;
    this.#lose(`${nameOf(member)} ${signal ?? code ?? `has disconnected: ${reason}`}`);
  }

  /** Admits a rank that proves that it knows the secret; returns undefined if the rank is refused. */
  #greet(channel: Channel, hello: Hello, nonce: string): Member | undefined {
    const { secret, version } = this.#options;
    const refuse = (reason: string) => {
      channel.sendJson({ kind: "refused", reason });
      channel.close(reason);
      return undefined;
    };
    const { rank } = hello;
    if (hello.kind !== "hello" || !isProof(hello.proof, proofOf(secret, "rank", rank, nonce))) {
      return refuse("wrong secret");
    }
    const member = this.#members[rank];
    if (!member) return refuse(`the group has ${this.size} ranks, and no rank ${rank}`);
    if (member.channel) return refuse(`rank ${rank} has already joined`);
    if (hello.version !== version) {
      const reason = `${nameOf(member)} runs mlx-serve ${hello.version}, and the server ${version}`;
      this.#loss = reason;
      this.#changed();
      return refuse(reason);
    }
    channel.isProved = true;
    member.channel = channel;
    member.heardMs = Date.now();
    member.state = "connected";
    channel.sendJson({ kind: "welcome", proof: proofOf(secret, "server", rank, hello.nonce) });
    if (this.#members.every(({ state }) => state === "connected")) {
      for (const each of this.#members) each.channel!.sendJson({ kind: "form" });
    }
    this.#changed();
    return member;
  }

  #hear(member: Member, message: FromRankProcess): void {
    member.heardMs = Date.now();
    if (message.kind === "failed") this.#lose(`${nameOf(member)}: ${message.reason}`);
    if (message.kind !== "formed") return;
    member.state = "ready";
    this.#connections = message.connections;
    member.usableBytes = message.usableBytes;
    if (this.#members.some(({ state }) => state !== "ready")) return;
    this.#isFormed = true;
    this.#isUsed = false;
    this.#loss = undefined;
    this.#tellFormed();
    this.#changed();
  }

  #check(): void {
    const now = Date.now();
    // If this process itself was suspended, the ranks' silence does not count.
    const wasAway = now - this.#checkedMs > SILENCE_MS / 2;
    this.#checkedMs = now;
    if (wasAway) for (const member of this.#members) member.heardMs = now;
    const silent = this.#members.find(
      ({ channel, heardMs }) => channel && now - heardMs > SILENCE_MS,
    );
    if (silent) {
      this.#lose(`${nameOf(silent)} has stalled: no heartbeat for ${SILENCE_MS / 1000} s`);
      return;
    }
    const late = this.#members.find(({ host, channel }) => host.isLocal && !channel);
    if (late && now - this.#startedMs > START_MS) this.#lose(`${nameOf(late)} did not start`);
  }

  #lose(reason: string): void {
    if (this.#isStopped || this.#members.length === 0) return;
    const wasFormed = this.#isFormed;
    this.#isFormed = false;
    this.#loss = reason;
    if (wasFormed) this.#tell({ kind: "lost", reason });
    void this.#endRanks().then(async () => {
      await Bun.sleep(AGAIN_MS);
      if (!this.#isStopped) this.#startRanks();
    });
    this.#changed();
  }

  /** Ends the local ranks with SIGKILL, because a rank may be stuck in a collective forever. */
  async #endRanks(): Promise<void> {
    const members = this.#members.splice(0);
    for (const { channel } of members) channel?.close("the group has ended");
    for (const { process } of members) process?.kill("SIGKILL");
    await Promise.all(members.map(({ process }) => process?.exited));
    // Deletes the shared file if the ranks have not: they delete it once all have connected to it.
    if (this.#memory) rmSync(this.#memory, { force: true });
  }

  #tellFormed(): void {
    this.#tell({ kind: "formed", memory: this.#members.map(({ usableBytes }) => usableBytes!) });
  }

  #tell(message: ToRankUser): void {
    if (this.#user) send(this.#user.mailbox, message);
  }

  #changed(): void {
    if (!this.#isStopped) this.#options.onChange?.(this.status());
  }
}

function nameOf({ rank, host }: Pick<Member, "rank" | "host">): string {
  return `rank ${rank} (${host.address})`;
}

/** Finds ports that nothing listens on. */
export function freePorts(count: number): number[] {
  const listeners = Array.from({ length: count }, () =>
    Bun.listen({ hostname: "127.0.0.1", port: 0, socket: { data() {} } }),
  );
  const ports = listeners.map(({ port }) => port);
  for (const each of listeners) each.stop(true);
  return ports;
}

export type RankProcess = { rank: number; server: string; secret: string };

/** Returns the environment variables of a rank's process. MLX itself reads MLX_RANK. */
export function rankVariables({ rank, server, secret }: RankProcess): Record<string, string> {
  return { MLX_RANK: String(rank), MLX_SERVE_RANK_SERVER: server, MLX_SERVE_RANK_SECRET: secret };
}

export function readRankVariables(
  env: Readonly<Record<string, string | undefined>>,
): RankProcess | undefined {
  const { MLX_RANK, MLX_SERVE_RANK_SERVER: server, MLX_SERVE_RANK_SECRET: secret } = env;
  if (!MLX_RANK || !server || !secret) return undefined;
  return { rank: Number(MLX_RANK), server, secret };
}
