// Finds the value of a field in the text of a JSON object, to pass it on verbatim: numbers that JavaScript cannot
// represent stay exact.

const [QUOTE, BACKSLASH, COMMA, COLON] = [0x22, 0x5c, 0x2c, 0x3a];
const [OPEN_ARRAY, CLOSE_ARRAY, OPEN_OBJECT, CLOSE_OBJECT] = [0x5b, 0x5d, 0x7b, 0x7d];

export type Span = { start: number; end: number };

/** Returns the bytes of a field's value in valid JSON. Of duplicate fields the last counts, as in JSON.parse. */
export function fieldSpan(json: Uint8Array, name: string): Span | undefined {
  let found: Span | undefined;
  let [depth, key, valueStart] = [0, { start: 0, end: 0 }, 0];
  const endField = (end: number) => {
    if (valueStart > 0 && textOf(json, key) === name) found = { start: valueStart, end };
    valueStart = 0;
  };
  for (let at = 0; at < json.length; at++) {
    switch (json[at]) {
      case QUOTE: {
        const end = stringEnd(json, at);
        if (depth === 1 && valueStart === 0) key = { start: at, end };
        at = end - 1;
        break;
      }
      case COLON:
        if (depth === 1) valueStart = at + 1;
        break;
      case COMMA:
        if (depth === 1) endField(at);
        break;
      case OPEN_ARRAY:
      case OPEN_OBJECT:
        depth++;
        break;
      case CLOSE_ARRAY:
      case CLOSE_OBJECT:
        if (depth === 1) endField(at);
        depth--;
        break;
    }
  }
  return found;
}

/** Returns the offset after the closing quote of a string. */
function stringEnd(json: Uint8Array, start: number): number {
  for (let at = start + 1; at < json.length; at++) {
    if (json[at] === BACKSLASH) at++;
    else if (json[at] === QUOTE) return at + 1;
  }
  return json.length;
}

function textOf(json: Uint8Array, { start, end }: Span): unknown {
  return JSON.parse(Buffer.from(json.buffer, json.byteOffset + start, end - start).toString());
}
