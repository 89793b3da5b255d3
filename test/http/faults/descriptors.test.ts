// A server whose clients use up its file descriptors.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { RawConnection, requestText } from "../../support/raw-http.ts";
import { type Home, makeHome, type Running, startMlxServe } from "../../support/serve-process.ts";

const CLIENTS = 300;
const limited = ["sh", "-c", 'ulimit -n 128 && exec "$@"', "sh"];
const completion = { prompt: "Once", max_tokens: 3000, ignore_eos: true, temperature: 0 };

/** A connection that has sent part of a head, if the server takes it. */
async function occupy(port: number): Promise<RawConnection | undefined> {
  try {
    const connection = await RawConnection.open(port);
    await connection.write("GET /health HTTP/1.1\r\n");
    return connection;
  } catch {
    return undefined;
  }
}

/** A server with few descriptors. */
async function start(home: Home): Promise<Running & { url: string; port: number }> {
  const args = ["serve", home.model, "--port", "0", "--stream-buffer", "4000"];
  const server = startMlxServe(args, home.env, "", limited);
  const [, url] = await server.says(/"url":"(\S+?)".*"msg":"ready"/);
  return { ...server, url: url!, port: Number(new URL(url!).port) };
}

/** Returns when a new client is served. */
async function untilServed(url: string): Promise<void> {
  const isServed = () =>
    fetch(`${url}/health`).then(
      ({ ok }) => ok,
      () => false,
    );
  while (!(await isServed())) await Bun.sleep(50);
}

let home: Home;
beforeAll(() => {
  home = makeHome();
});
afterAll(() => home.remove());

test("too many connections are told once, take no processor time, and harm no stream", async () => {
  const { url, port, ...server } = await start(home);
  const stream = await RawConnection.open(port);
  const headers = { Connection: "close" };
  const body = { ...completion, stream: true };
  await stream.write(requestText("/v1/completions", { headers, body }));
  await stream.receive(1);
  const crowd = await Promise.all(Array.from({ length: CLIENTS }, () => occupy(port)));
  await server.says(/file descriptors run short/);
  const taken = () => crowd.filter((connection) => connection?.isOpen).length;
  while (taken() > 120) await Bun.sleep(10);
  expect(taken()).toBeGreaterThan(10);

  await stream.ended;
  expect(stream.received).toContain("data: [DONE]\n\n");
  // Nothing is under way now; new clients keep trying.
  const before = cpuMs(server.pid);
  for (let i = 0; i < 40; i++) {
    crowd.push(await occupy(port));
    await Bun.sleep(100);
  }
  expect(cpuMs(server.pid) - before).toBeLessThan(2000);

  for (const connection of crowd) connection?.leave();
  await untilServed(url);
  server.kill("SIGTERM");
  const { stderr, exitCode } = await server.ended;
  expect(stderr.match(/file descriptors/g)).toHaveLength(1);
  expect(exitCode).toBe(0);
}, 60_000);

test("idle connections are closed to make room for new ones", async () => {
  const { url, port, ...server } = await start(home);
  const open = () => RawConnection.open(port).catch(() => undefined);
  const idle = await Promise.all(Array.from({ length: CLIENTS }, open));
  await server.says(/file descriptors run short/);
  // They would be closed for being idle only after 30 seconds.
  const startMs = performance.now();
  await untilServed(url);
  expect(performance.now() - startMs).toBeLessThan(15_000);
  for (const connection of idle) connection?.leave();
  server.kill("SIGTERM");
  expect(await server.ended).toMatchObject({ exitCode: 0 });
}, 60_000);

/** What a process has used of processors so far. */
function cpuMs(pid: number): number {
  const ps = Bun.spawnSync(["ps", "-o", "cputime=", "-p", String(pid)]);
  // Some systems tell hundredths: [[days-]hours:]minutes:seconds[.hundredths].
  const parts = ps.stdout.toString().trim().split(/[-:]/).map(Number);
  return 1000 * parts.reduce((sum, part) => sum * 60 + part, 0);
}
