import { expect, test } from "bun:test";
import { blockBytes, groupsOf, LayerStates } from "../../../src/model/contract/states.ts";

test("latents are in the group of what sees all tokens, one vector each", () => {
  const states = new LayerStates();
  const windowed = states.kv({ heads: 4, kvHeads: 2, headDim: 16, window: 12 });
  const latents = [1, 2].map(() => states.latent({ heads: 16, latent: 512, rotary: 64 }));
  const whole = states.kv({ heads: 4, kvHeads: 2, headDim: 16 });
  const groups = groupsOf(states);
  expect(groups).toEqual([
    { window: 12, kvs: [windowed], latents: [] },
    { window: undefined, kvs: [whole], latents },
  ]);
  expect(groups.map((group) => blockBytes(group, "bfloat16"))).toEqual([
    2 * 2 * 16 * 32 * 2,
    (2 * 2 * 16 + 2 * 576) * 32 * 2,
  ]);
});

test("a model with latents alone has one group", () => {
  const states = new LayerStates();
  const latent = states.latent({ heads: 4, latent: 32, rotary: 16 });
  expect(groupsOf(states)).toEqual([{ window: undefined, kvs: [], latents: [latent] }]);
  expect(groupsOf(new LayerStates())).toEqual([]);
});
