// llama.cpp for scripts/bench/compare.ts, as a server of /v1/completions streams over node-llama-cpp's batching:
//   node scripts/bench/compare/llama-server.mjs <folder of node_modules> <model.gguf> <port> <threads> <slots> <gpu>
// Plain JavaScript, because it runs in node with the packages of another folder.
import { createServer } from "node:http";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [packages = "", modelPath = "", ...numbers] = process.argv.slice(2);
const [port, threads, slots, gpu] = numbers.map(Number);
/** What a sequence may hold: the longest built-in prompt and an answer. */
const contextSize = 1024;

const entry = join(packages, "node_modules", "node-llama-cpp", "dist", "index.js");
const { getLlama } = await import(pathToFileURL(entry).href);
const llama = await getLlama({
  gpu: gpu ? "auto" : false,
  build: "never",
  maxThreads: threads,
  logLevel: "error",
});
const model = await llama.loadModel({ modelPath });
const context = await model.createContext({ sequences: slots, contextSize, threads });
const free = Array.from({ length: slots ?? 1 }, () => context.getSequence());
const fingerprint = `llama.cpp ${llama.llamaCppRelease.release}`;

/** @type {(response: import("node:http").ServerResponse, body: any) => Promise<void>} */
async function complete(response, { prompt, max_tokens: maxTokens }) {
  const sequence = free.pop();
  if (!sequence) {
    response.writeHead(429).end();
    return;
  }
  response.writeHead(200, { "content-type": "text/event-stream" });
  const send = (/** @type {object} */ event) =>
    response.write(
      `data: ${JSON.stringify({ object: "text_completion", system_fingerprint: fingerprint, ...event })}\n\n`,
    );
  const ids = model.tokenize(prompt);
  let tokens = 0;
  // Continues past the end of answers, so that all have equally many tokens.
  for await (const id of sequence.evaluate(ids, { temperature: 0, yieldEogToken: true })) {
    tokens += 1;
    const isLast = tokens === maxTokens || response.destroyed;
    const reason = isLast ? "length" : null;
    send({ choices: [{ index: 0, text: model.detokenize([id]), finish_reason: reason }] });
    if (isLast) break;
  }
  await sequence.clearHistory();
  free.push(sequence);
  const usage = { prompt_tokens: ids.length, completion_tokens: tokens };
  send({ choices: [], usage: { ...usage, total_tokens: ids.length + tokens } });
  response.end("data: [DONE]\n\n");
}

createServer(async (request, response) => {
  if (request.method !== "POST") return void response.end("{}");
  let body = "";
  for await (const chunk of request) body += chunk;
  await complete(response, JSON.parse(body)).catch((error) => response.destroy(error));
}).listen(port, "127.0.0.1");
