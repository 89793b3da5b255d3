// Attacks by forged names: keys, paths, hosts, origins, models and ids.

import { requestText } from "../../test/support/raw-http.ts";
import {
  type Attack,
  completions,
  expectRefused,
  post,
  statusesOf,
  type Target,
  withKey,
} from "./attack.ts";

const close = { Connection: "close" };

const paths = [
  "//v1/models",
  "/v1//models",
  "/v1/../v1/models",
  "/./ps",
  "/health/../ps",
  "/%76%31/models",
  "/v1%2fmodels",
  "/v1/models%00",
  "/metrics;/health",
  "/health%2f..%2fps",
  "/ps?/health",
  "/ps#/health",
  "http://localhost/ps",
];

const models = [
  "../../etc/passwd",
  "/etc/passwd",
  "a".repeat(5000),
  "%2e%2e/x",
  "x\0y",
  "\ud800",
  ".",
];

/** Text that would forge log lines. */
const forgeries = [
  "/%0a%1b[2J%1b[31mERROR%20forged",
  "/\x1b]0;forged\x07",
  "/%0d%0aHTTP/1.1%20200%20OK",
  "/%e2%80%ae%e2%80%a8forged",
  `/${"forged".repeat(8000)}`,
];

/** The last answer; undefined if the connection was closed without one. */
const last = async (target: Target, text: string) =>
  (await statusesOf(target, Buffer.from(text, "latin1"))).at(-1);

export const nameAttacks: Attack[] = [
  {
    name: "paths without a key",
    async run(target) {
      for (const path of paths) {
        const status = await last(target, requestText(path, { headers: close }));
        if (status !== undefined && status < 400) throw new Error(`${path}: ${status}`);
      }
    },
  },
  {
    name: "keys that are nearly right",
    async run({ port, key }) {
      const wrong = ["", " ", key.slice(0, -1), `${key}x`, `${key},${key}`, key.toUpperCase()];
      for (const each of wrong) {
        const response = await post({ port, key: each }, completions, { prompt: "Hello" });
        await expectRefused(response, [401]);
      }
    },
  },
  {
    name: "hosts and origins of others",
    async run(target) {
      for (const headers of [
        { Host: "evil.example" },
        { Host: "localhost.evil.example" },
        { Host: "localhost@evil.example" },
        { Origin: "https://evil.example" },
        { Origin: "null" },
      ]) {
        const text = withKey(target, "/v1/models", { headers: { ...close, ...headers } });
        const status = await last(target, text);
        if (status !== undefined && status < 400) throw new Error(JSON.stringify(headers));
      }
    },
  },
  {
    name: "models that are paths",
    async run(target) {
      for (const model of models) {
        const response = await post(target, completions, { model, prompt: "Hello", max_tokens: 1 });
        await expectRefused(response, [400, 404]);
      }
    },
  },
  {
    name: "what others may do",
    async run(target) {
      for (const path of ["/models/unload", "/models/load"]) {
        await expectRefused(await post(target, path, { model: "default" }), [403]);
      }
    },
  },
  {
    name: "lines forged in the log",
    async run(target) {
      for (const path of forgeries) {
        const headers = { ...close, "X-Request-Id": "\x1b[31mforged" };
        await last(target, requestText(path, { headers }));
        await last(target, withKey(target, path, { headers: close }));
      }
    },
  },
];
