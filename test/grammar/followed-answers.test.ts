import { expect, test } from "bun:test";
import { FollowedAnswers, type NativeMatcher } from "../../src/grammar/followed-answers.ts";
import { type Grammar, MASK_FAILED, makeMask } from "../../src/grammar/grammar.ts";

const vocabulary = { path: "", size: 64, stopTokens: [], markers: [] };
const grammar: Grammar = { vocabulary, format: "", strict: [] };

/** Allows any token, and counts those that it accepted. */
function fakeMatcher() {
  const state = { accepted: 0, disposed: 0 };
  const matcher: NativeMatcher = {
    acceptToken: () => {
      state.accepted += 1;
      return true;
    },
    getNextTokenBitmask: async () => new Int32Array(2).fill(-1),
    dispose: () => {
      state.disposed += 1;
    },
  };
  return Object.assign(state, { matcher });
}

const stateOf = (mask: SharedArrayBuffer) => new Int32Array(mask)[0];

test("an answer is followed from its opening to its end", async () => {
  const fake = fakeMatcher();
  const answers = new FollowedAnswers(async () => fake.matcher);
  const mask = makeMask(vocabulary.size);
  await answers.follow({ kind: "open", id: 7, grammar, mask });
  expect(stateOf(mask)).toBe(1);
  await answers.follow({ kind: "accept", id: 7, token: 3 });
  expect(stateOf(mask)).toBe(2);
  await answers.follow({ kind: "close", id: 7 });
  await answers.follow({ kind: "accept", id: 7, token: 3 });
  expect([stateOf(mask), fake.accepted, fake.disposed]).toEqual([2, 1, 1]);
});

test("a grammar that cannot be opened fails its answer", async () => {
  const answers = new FollowedAnswers(async () => {
    throw new Error("no such grammar");
  });
  const mask = makeMask(vocabulary.size);
  await answers.follow({ kind: "open", id: 7, grammar, mask });
  expect(stateOf(mask)).toBe(MASK_FAILED);
});

test("an answer that is being opened when the link closes is not followed, and nothing leaks", async () => {
  const fake = fakeMatcher();
  const opened = Promise.withResolvers<NativeMatcher>();
  const answers = new FollowedAnswers(() => opened.promise);
  const mask = makeMask(vocabulary.size);
  const opening = answers.follow({ kind: "open", id: 0, grammar, mask });
  answers.close();
  opened.resolve(fake.matcher);
  await opening;
  await answers.follow({ kind: "accept", id: 0, token: 3 });
  expect([stateOf(mask), fake.accepted, fake.disposed]).toEqual([0, 0, 1]);
});
