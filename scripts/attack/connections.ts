// Attacks on HTTP: heads and bodies that are malformed, slow, endless, or not HTTP at all.
import { RawConnection } from "../../test/support/raw-http.ts";
import {
  type Attack,
  chat,
  completions,
  endless,
  question,
  statusesIn,
  statusesOf,
  type Target,
  withKey,
} from "./attack.ts";

const MIB = 2 ** 20;

/** Requests that every server must reject. */
const malformed: Record<string, string> = {
  "no version": "GET /health\r\n\r\n",
  "version 3.7": "GET /health HTTP/3.7\r\nHost: localhost\r\n\r\n",
  "no host": "GET /health HTTP/1.1\r\n\r\n",
  "two hosts": "GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
  "a foreign host": "GET /health HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
  "a space before the colon": "GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
  "a folded header": "GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: a\r\n b\r\n\r\n",
  "a header without a name": "GET /health HTTP/1.1\r\nHost: localhost\r\n: a\r\n\r\n",
  "a header without a colon": "GET /health HTTP/1.1\r\nHost: localhost\r\nabc\r\n\r\n",
  "NUL in a header": "GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: a\0b\r\n\r\n",
  "a bare CR": "GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: a\rb\r\n\r\n",
  "NUL in the path": "GET /he\0alth HTTP/1.1\r\nHost: localhost\r\n\r\n",
  "two spaces": "GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
  "an unknown method": "BREW /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
  "two lengths":
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
  "a length and chunks":
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
  "a negative length":
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
  "a length that is no number":
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0x10\r\n\r\n",
  "a length of 2^64":
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 18446744073709551616\r\n\r\n",
  "an unknown transfer encoding":
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
  "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
  TLS: "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
};

/** Bodies with malformed chunks. */
const badChunks = [
  "zz\r\n",
  "-1\r\n",
  "fffffffffffffffff\r\n",
  "2\r\n{}x",
  `2;${"a".repeat(70_000)}\r\n{}\r\n0\r\n\r\n`,
  `0\r\n${"X-A: a\r\n".repeat(20_000)}\r\n`,
];

const chunked = (target: Target, body: string) =>
  withKey(target, completions, {
    method: "POST",
    headers: { "Content-Type": "application/json", "Transfer-Encoding": "chunked" },
  }) + body;

/** Throws if the last answer of a connection is successful. */
function expectNone(name: string, statuses: readonly number[]): void {
  const last = statuses.at(-1);
  if (last !== undefined && last < 400) throw new Error(`${name}: ${statuses.join(", ")}`);
}

const allOf = <T>(count: number, make: (index: number) => Promise<T>) =>
  Promise.all(Array.from({ length: count }, (_, index) => make(index)));

export const connectionAttacks: Attack[] = [
  {
    name: "malformed heads",
    async run(target) {
      for (const [name, text] of Object.entries(malformed)) {
        expectNone(name, await statusesOf(target, Buffer.from(text, "latin1")));
      }
    },
  },
  {
    name: "malformed chunks",
    async run(target) {
      for (const chunks of badChunks) {
        expectNone(chunks.slice(0, 20), await statusesOf(target, chunked(target, chunks)));
      }
    },
  },
  {
    name: "random bytes",
    async run(target, random) {
      await allOf(100, async () => {
        const bytes = Uint8Array.from({ length: 1 + random.below(2000) }, () => random.below(256));
        const end = Buffer.from("\r\n\r\n");
        expectNone("random bytes", await statusesOf(target, Buffer.concat([bytes, end])));
      });
    },
  },
  {
    name: "huge heads",
    async run(target) {
      const headers = { "X-A": "a".repeat(200_000) };
      const many = Object.fromEntries(Array.from({ length: 5000 }, (_, i) => [`X-${i}`, "a"]));
      for (const text of [
        withKey(target, "/health", { headers }),
        withKey(target, "/health", { headers: many }),
        withKey(target, `/${"a".repeat(200_000)}`),
      ]) {
        expectNone("a huge head", await statusesOf(target, text));
      }
    },
  },
  {
    name: "bodies of gigabytes",
    async run(target) {
      const head = (headers: object) =>
        withKey(target, completions, {
          method: "POST",
          headers: { "Content-Type": "application/json", ...headers },
        });
      for (const headers of [
        { "Content-Length": 2 ** 34 },
        { "Content-Length": 2 ** 34, Authorization: "Bearer wrong" },
      ]) {
        const connection = await RawConnection.open(target.port);
        await connection.write(head(headers));
        let sent = 0;
        while (connection.isOpen && sent < 512 && (await taken(connection))) sent += 1;
        connection.leave();
        if (sent >= 256) throw new Error(`the server took ${sent} MiB that it had refused`);
        expectNone("gigabytes", statusesIn(connection));
      }
    },
  },
  {
    name: "slow heads and bodies, beside others",
    async run(target) {
      const connections = await allOf(50, () => RawConnection.open(target.port));
      const body = withKey(target, chat, { body: question("Hello") });
      for (const [index, connection] of connections.entries()) {
        void connection.write(index % 2 === 0 ? "GET /health HT" : body.slice(0, -10));
      }
      const drip = setInterval(() => {
        for (const connection of connections) if (connection.isOpen) void connection.write("x");
      }, 100);
      await Bun.sleep(2000);
      clearInterval(drip);
      for (const connection of connections) connection.leave();
    },
  },
  {
    name: "a thousand idle connections",
    async run(target) {
      const connections = await allOf(1000, () =>
        RawConnection.open(target.port).catch(() => undefined),
      );
      await Bun.sleep(1000);
      for (const connection of connections) connection?.leave();
    },
  },
  {
    name: "pipelined requests",
    async run(target) {
      const last = withKey(target, "/health", { headers: { Connection: "close" } });
      const slow = withKey(target, completions, { body: { ...endless, max_tokens: 20 } });
      const many = withKey(target, "/health").repeat(100);
      const statuses = await statusesOf(target, slow + many + slow + last);
      if (statuses.length !== 103) throw new Error(`${statuses.length} of 103 were answered`);
    },
  },
  {
    name: "requests left in every state",
    async run(target, random) {
      await allOf(200, async () => {
        const connection = await RawConnection.open(target.port);
        const stream = random.chance(0.5);
        const text = withKey(target, completions, { body: { ...endless, stream } });
        void connection.write(text.slice(0, random.chance(0.2) ? random.below(400) : undefined));
        await Bun.sleep(random.below(1500));
        connection.leave();
      });
    },
  },
  {
    name: "streams that nobody reads",
    async run(target) {
      const body = { ...endless, n: 4, stream: true, logprobs: 5 };
      const connections = await allOf(4, () => RawConnection.open(target.port));
      for (const connection of connections) {
        await connection.write(withKey(target, completions, { body }));
        connection.stopReading();
      }
      await Bun.sleep(3000);
      for (const connection of connections) connection.leave();
    },
  },
];

const megabyte = new Uint8Array(MIB);

/** Whether the server accepts another megabyte within a second. */
async function taken(connection: RawConnection): Promise<boolean> {
  const written = connection.write(megabyte).then(() => connection.isOpen);
  return await Promise.race([written, Bun.sleep(1000).then(() => false)]);
}
