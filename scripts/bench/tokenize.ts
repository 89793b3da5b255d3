// Measures how long texts delay other clients: each is sent to /tokenize of a server in another process, while another
// client polls /health.
//
//   npm run -s bench:tokenize -- [--megabytes 16] [--tokenizer llama] [--text spaces]
//
// Fails if the ids differ from those of the text encoded as a whole, if the server's main thread computes for over 50
// ms before it answers the other client, or if memory grows by more than 10 times the text. Texts of newlines are
// shorter, because requests may contain only a limited number of escapes.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { tokenizerFromJson } from "../../src/text/tokenizer/tokenizer.ts";
import type { TokenizerJson } from "../../src/text/tokenizer/tokenizer-json.ts";
import { longTexts } from "../../test/support/long-texts.ts";
import { makeHome, startMlxServe } from "../../test/support/serve-process.ts";
import { readFlags } from "../flags.ts";

const MAX_BLOCK_MS = 50;
const MAX_GROWTH = 10;
const LEAST_BYTES = 8 * 2 ** 20;

const values = readFlags({ megabytes: 16, tokenizer: "", text: "" });
const bytes = values.megabytes * 2 ** 20 - 1024;
const golden = (name: string) =>
  JSON.parse(readFileSync(join(import.meta.dir, "../../test/golden/text", `${name}.json`), "utf8"));
const byteLevel = golden("byte-level").tokenizer as TokenizerJson;
const tokenizers: Record<string, TokenizerJson> = {
  "byte-level": byteLevel,
  "byte-level with NFC": { ...byteLevel, normalizer: { type: "NFC" } },
  "byte-level in one piece": {
    ...byteLevel,
    pre_tokenizer: { type: "ByteLevel", use_regex: false },
  },
  llama: golden("llama").tokenizer,
  unigram: golden("unigram").tokenizer,
  "word-piece": golden("word-piece").tokenizer,
};

type Result = { hash: number | bigint; count: number; blockMs: number; growth: number; ms: number };

/** The same text encoded as a whole. */
function plainIds(json: TokenizerJson, text: string): Uint32Array {
  const sizes = { part: Infinity, piece: Infinity };
  const options = { controlTokens: "text", addSpecialTokens: true } as const;
  return Uint32Array.from(tokenizerFromJson(json, {}, sizes).encode(text, options));
}

const hashOf = (ids: Uint32Array) => Bun.hash(new Uint8Array(ids.buffer, 0, ids.byteLength));

class Server {
  readonly #home = makeHome({ maxPositions: 2 ** 23 });
  readonly #process;
  #url = "";

  constructor(json: TokenizerJson) {
    writeFileSync(join(this.#home.model, "tokenizer.json"), JSON.stringify(json));
    const flags = ["--port=0", "--log-format=json", "--max-batch-size=1", "--kv-memory=5GiB"];
    this.#process = startMlxServe(["serve", this.#home.model, ...flags], this.#home.env);
  }

  async ready(): Promise<void> {
    this.#url = (await this.#process.says(/"url":"([^"]+)"/))[1]!;
    // Warms up: the first long text starts the thread.
    await this.#tokenize("a b ".repeat(2 ** 20));
  }

  async measure(text: string): Promise<Result> {
    const before = this.#memory("VmRSS");
    writeFileSync(`/proc/${this.#process.pid}/clear_refs`, "5");
    const start = performance.now();
    const answer = this.#tokenize(text);
    let isOver = false;
    const over = answer.finally(() => {
      isOver = true;
    });
    let blockMs = 0;
    while (!isOver) {
      const computed = this.#computedMs();
      await (await fetch(`${this.#url}/health`)).text();
      blockMs = Math.max(blockMs, this.#computedMs() - computed);
      await Bun.sleep(1);
    }
    const ms = performance.now() - start;
    const growth =
      (this.#memory("VmHWM") - before) / Math.max(Buffer.byteLength(text), LEAST_BYTES);
    const ids = await over;
    return { hash: hashOf(ids), count: ids.length, blockMs, growth, ms };
  }

  async stop(): Promise<void> {
    this.#process.kill("SIGTERM");
    await this.#process.ended;
    this.#home.remove();
  }

  async #tokenize(prompt: string): Promise<Uint32Array> {
    const response = await fetch(`${this.#url}/tokenize`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ prompt }),
    });
    const text = await response.text();
    if (response.status !== 200) throw new Error(`${response.status}: ${text}`);
    return Uint32Array.from(JSON.parse(text).tokens);
  }

  /** CPU time of its main thread, which excludes time when other processes run. */
  #computedMs(): number {
    const { pid } = this.#process;
    return Number(readFileSync(`/proc/${pid}/task/${pid}/schedstat`, "utf8").split(" ")[0]) / 1e6;
  }

  #memory(field: "VmRSS" | "VmHWM"): number {
    const status = readFileSync(`/proc/${this.#process.pid}/status`, "utf8");
    return Number(new RegExp(`${field}:\\s+(\\d+)`).exec(status)![1]) * 1024;
  }
}

function isWithinLimits({ blockMs, growth }: Result): boolean {
  return blockMs <= MAX_BLOCK_MS && growth <= MAX_GROWTH;
}

let failures = 0;
for (const [name, json] of Object.entries(tokenizers)) {
  if (values.tokenizer && values.tokenizer !== name) continue;
  const server = new Server(json);
  await server.ready();
  for (const [kind, text] of Object.entries(longTexts(bytes))) {
    if (values.text && values.text !== kind) continue;
    let result = await server.measure(text);
    // Repeats, since a single run may exceed the limit by chance.
    for (let i = 0; i < 2 && !isWithinLimits(result); i++) {
      const again = await server.measure(text);
      if (isWithinLimits(again)) result = again;
    }
    const { hash, count, blockMs, growth, ms } = result;
    const isSame = hash === hashOf(plainIds(json, text));
    const isGood = isSame && isWithinLimits(result);
    if (!isGood) failures++;
    console.log(
      `${isGood ? "" : "FAILED "}${name}, ${kind}: ${count} ids ${isSame ? "as in one piece" : "DIFFER"}, ` +
        `blocked for ${blockMs.toFixed(0)} ms, memory ${growth.toFixed(1)}x, ${(ms / 1000).toFixed(1)} s`,
    );
  }
  await server.stop();
}
if (failures > 0) console.log(`${failures} failed`);
process.exitCode = failures === 0 ? 0 : 1;
