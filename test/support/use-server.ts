// A server for the tests of a file or a `describe`.
import { afterAll, afterEach, beforeAll } from "bun:test";
import { expectUnharmed } from "./fault-checks.ts";
import { startTestServer, type TestServer, type TestServerOptions } from "./server.ts";

/** Its properties are set before the first test. `after` holds after each. */
export function useTestServer(
  options: TestServerOptions = {},
  after: (server: TestServer) => Promise<void> = expectUnharmed,
): TestServer {
  const server = {} as TestServer;
  beforeAll(async () => {
    Object.assign(server, await startTestServer(options));
  });
  afterEach(() => after(server));
  afterAll(() => server.stop());
  return server;
}

/** For `after`: nothing is under way. */
export const settled = (server: TestServer) => server.settled();
