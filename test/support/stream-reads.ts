// Clients that read a stream up to a point.
import type { TestServer } from "./server.ts";

/** Leaves once the text is enough. */
export async function readUntil(
  server: TestServer,
  path: string,
  body: object,
  isEnough: (text: string) => boolean | Promise<boolean>,
): Promise<string> {
  const leaving = new AbortController();
  const { body: stream } = await server.post(path, body, { signal: leaving.signal });
  let text = "";
  for await (const piece of stream!.pipeThrough(new TextDecoderStream())) {
    text += piece;
    if (await isEnough(text)) break;
  }
  leaving.abort();
  return text;
}

/** Reads to the end, the engine being killed after some of it. */
export function readKilled(server: TestServer, path: string, body: object): Promise<string> {
  let isKilled = false;
  return readUntil(server, path, body, async (text) => {
    if (!isKilled && text.length >= 4000) {
      isKilled = true;
      await server.serving.engine.kill();
    }
    return false;
  });
}

/**
 * Leaves a stream after each of its events, of which `eventsIn` parses the complete ones, and expects that the server
 * settles. Returns the number of events.
 */
export async function leaveAtEachEvent(
  server: TestServer,
  path: string,
  body: object,
  eventsIn: (text: string) => readonly unknown[],
): Promise<number> {
  const total = eventsIn(await (await server.post(path, body)).text()).length;
  for (let taken = 0; taken <= total; taken++) {
    eventsIn(await readUntil(server, path, body, (text) => eventsIn(text).length >= taken));
  }
  await server.settled();
  return total;
}
