// Reads streams as text: by lines, or by server-sent events.

type Bytes = ReadableStream<Uint8Array<ArrayBuffer>>;

/** Yields the complete lines of a stream. */
export async function* linesOf(stream: Bytes): AsyncGenerator<string, undefined> {
  let rest = "";
  for await (const text of stream.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split(/\r?\n/);
    rest = lines.pop()!;
    yield* lines;
  }
}

/** Yields the data of each server-sent event. */
export async function* eventData(stream: Bytes): AsyncGenerator<string, undefined> {
  let data: string[] = [];
  for await (const line of linesOf(stream)) {
    const value = /^data: ?(.*)$/s.exec(line)?.[1];
    if (value !== undefined) data.push(value);
    if (line !== "" || data.length === 0) continue;
    yield data.join("\n");
    data = [];
  }
}
