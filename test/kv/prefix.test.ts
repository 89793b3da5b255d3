import { expect, test } from "bun:test";
import { BLOCK_TOKENS } from "../../src/kv/blocks.ts";
import { blockKey, rootKey } from "../../src/kv/prefix.ts";

const tokens = (from: number) => Uint32Array.from({ length: BLOCK_TOKENS }, (_, i) => from + i);
const root = rootKey("model", "salt");

test("equal tokens after the same prefix have the same key", () => {
  expect(blockKey(root, tokens(7))).toBe(blockKey(rootKey("model", "salt"), tokens(7)));
  const buffer = new Uint32Array(100);
  buffer.set(tokens(7), 50);
  expect(blockKey(root, buffer.subarray(50, 50 + BLOCK_TOKENS))).toBe(blockKey(root, tokens(7)));
});

test("other tokens, another prefix, model or salt have another key", () => {
  const keys = [
    blockKey(root, tokens(7)),
    blockKey(
      root,
      tokens(7).map((id) => id + 256),
    ), // equal modulo 256
    blockKey(root, tokens(7).toReversed()),
    blockKey(blockKey(root, tokens(7)), tokens(7)), // after itself
    blockKey(blockKey(root, tokens(8)), tokens(7)),
    blockKey(rootKey("model", "other salt"), tokens(7)),
    blockKey(rootKey("other model", "salt"), tokens(7)),
    blockKey(rootKey('model","', "salt"), tokens(7)),
    blockKey(rootKey("modelsalt", ""), tokens(7)),
  ];
  expect(new Set(keys).size).toBe(keys.length);
});

test("a block that is not full has no key", () => {
  expect(() => blockKey(root, tokens(0).subarray(1))).toThrow("a full block has 32 tokens, not 31");
});
