import { expect, test } from "bun:test";
import { Hono } from "hono";
import type { HttpEnv } from "../../../src/http/frame/env.ts";
import { jsonParts } from "../../../src/http/frame/json-parts.ts";

test("a long response can be written in parts on a route without limits", async () => {
  const numbers = Array.from({ length: 100_000 }, (_, i) => i);
  const app = new Hono<HttpEnv>().get("/numbers", (c) => {
    c.set("record", { id: "req-1" });
    const parts = numbers.map((number, i) => `${i === 0 ? "[" : ","}${number}`);
    return jsonParts(c, [...parts, "]"].values());
  });
  const answer = await app.request("/numbers");
  expect(answer.status).toBe(200);
  expect(await answer.json()).toEqual(numbers);
});
