// Checks of the engine as a server uses it: the Worker, the scheduler, the caches, sampling, grammars.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { EngineClient } from "../engine/client.ts";
import type { EngineEvent, EngineOptions, EngineRequest } from "../engine/protocol.ts";
import { compared, type Finding, noise } from "./check.ts";
import { keptBy, type TinyModel, tinyModel, tinyModels, writeTinyModel } from "./tiny-models.ts";

export type EngineCheck = { name: string; run(engine: EngineClient): Promise<readonly Finding[]> };

/** One answer of a request. */
export type Answer = {
  tokens: number[];
  events: EngineEvent[];
  cachedTokens: number;
  finished: EngineEvent["finished"];
};

/** Loads a model, runs the work, and unloads the model. `prepare` adds files to the model's folder. */
export async function withModel<T>(
  engine: EngineClient,
  model: TinyModel,
  options: Partial<EngineOptions>,
  work: (folder: string) => Promise<T>,
  prepare: (folder: string) => void = () => {},
): Promise<T> {
  const folder = mkdtempSync(join(tmpdir(), "mlx-serve-self-test-"));
  try {
    writeTinyModel(folder, model);
    prepare(folder);
    await engine.load(model.name, folder, { dtype: "float32", blocks: 256, ...options });
    const result = await work(folder);
    await engine.unload(model.name);
    return result;
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** Submits a request synchronously; resolves when all of its answers have finished. */
export async function answersOf(
  engine: EngineClient,
  model: string,
  request: EngineRequest,
  onToken?: () => void,
): Promise<Answer[]> {
  const answers = Array.from({ length: request.n ?? 1 }, (): Answer => {
    return { tokens: [], events: [], cachedTokens: 0, finished: undefined };
  });
  for await (const event of engine.submit(model, request)) {
    const answer = answers[event.index]!;
    answer.events.push(event);
    answer.cachedTokens = event.cachedTokens;
    answer.finished = event.finished;
    if (event.token !== undefined) answer.tokens.push(event.token);
    onToken?.();
  }
  return answers;
}

export function requestOf(model: TinyModel, more: Partial<EngineRequest> = {}): EngineRequest {
  return {
    prompt: Uint32Array.from(model.prompt),
    maxTokens: model.greedy.length,
    sampling: { temperature: 0 },
    ...more,
  };
}

/** Counts wrong and missing tokens of an answer. A check fails if there are any. */
export function sameTokens(
  what: string,
  found: readonly number[],
  expected: readonly number[],
): Finding {
  const others = expected.filter((token, i) => token !== found[i]).length;
  const missing = Math.abs(expected.length - found.length);
  return { what: `${what}, tokens`, worst: Math.max(others, missing), most: 0 };
}

/** Fails unless an event, such as a preemption, happened. Without the event the check would prove nothing. */
function happened(what: string, isSo: boolean): Finding {
  return { what: `${what} did not happen`, worst: isSo ? 0 : 1, most: 0 };
}

export function modelChecks(): EngineCheck[] {
  return [
    ...tinyModels.map((model) => ({
      name: `model, alone, then prefix-hit: ${told(model)}`,
      run: (engine: EngineClient) => checkAlone(engine, model),
    })),
    ...tinyModels.map((model) => ({
      name: `model, batched, chunked, forked, preempted: ${told(model)}`,
      run: (engine: EngineClient) => checkTogether(engine, model),
    })),
    { name: "steps that overlap: prompts of many lengths", run: checkOverlap },
  ];
}

const told = ({ name }: TinyModel) => `${name}, which keeps ${keptBy[name as keyof typeof keptBy]}`;

/** Compares the logits and tokens of single requests with those of mlx-lm. */
async function checkAlone(engine: EngineClient, model: TinyModel): Promise<Finding[]> {
  const { last, greedy } = model;
  return await withModel(engine, model, {}, async () => {
    const sampling = { temperature: 0, logprobs: last.length };
    const [answer] = await answersOf(engine, model.name, requestOf(model, { sampling }));
    const [again] = await answersOf(engine, model.name, requestOf(model));
    const top = answer!.events[0]?.top ?? [];
    const byToken = top.toSorted((a, b) => a.token - b.token).map(({ logprob }) => logprob);
    return [
      compared("log-probabilities", byToken, logSoftmax(last), 1e-3),
      sameTokens("greedy", answer!.tokens, greedy),
      sameTokens("greedy again", again!.tokens, greedy),
      happened("a prefix hit", again!.cachedTokens >= 32),
    ];
  });
}

function logSoftmax(x: readonly number[]): number[] {
  const most = Math.max(...x);
  const sum = x.reduce((total, value) => total + Math.exp(value - most), 0);
  return x.map((value) => value - most - Math.log(sum));
}

/** Checks that answers do not depend on scheduling. Tries up to three times, because preemption depends on timing. */
async function checkTogether(engine: EngineClient, model: TinyModel): Promise<Finding[]> {
  for (let left = 3; ; left--) {
    const { findings, preemptions } = await runTogether(engine, model);
    if (preemptions > 0 || left === 1) {
      return [...findings, happened("a preemption", preemptions > 0)];
    }
  }
}

async function runTogether(engine: EngineClient, model: TinyModel) {
  const { name, greedy } = model;
  // Running out of KV blocks causes the preemption; in a model without them, a high-priority request causes it.
  const isRecurrent = keptBy[name as keyof typeof keptBy] === "a state";
  const options = { tokenBudget: 24, maxBatch: isRecurrent ? 3 : 6, blocks: 17 };
  return await withModel(engine, model, options, async () => {
    const underWay = Promise.withResolvers<void>();
    let tokens = 0;
    const onToken = () => {
      tokens += 1;
      if (tokens === 30) underWay.resolve();
    };
    const submit = (more: Partial<EngineRequest> = {}) =>
      answersOf(engine, name, requestOf(model, more), onToken);
    const first = [
      submit(),
      submit({ sampling: { temperature: 0, logprobs: 2 } }),
      submit({ n: 3 }),
      // Submits enough requests that the batch is full whenever the high-priority request arrives.
      ...(isRecurrent ? [submit(), submit(), submit(), submit()] : []),
    ];
    const prompt = Uint32Array.from(model.prompt).reverse();
    const aborted = engine.submit(name, requestOf(model, { prompt, salt: "aborted" }));
    await underWay.promise;
    const later = submit({ priority: isRecurrent ? "HIGH" : "NORMAL" });
    // Leaving the loop over a request's events aborts the request.
    for await (const _ of aborted) break;
    const answers = (await Promise.all([...first, later])).flat();
    const [stats] = await engine.stats();
    const findings = answers.map(({ tokens }, i) => sameTokens(`answer ${i + 1}`, tokens, greedy));
    return { findings, preemptions: stats!.preemptions };
  });
}

/** Prompt lengths. Some exceed a step, and one exceeds the limit of kernels for short prompts. */
const lengths = [700, 5, 130, 64, 33, 257, 1, 96, 40, 31, 32, 180];

async function checkOverlap(engine: EngineClient): Promise<Finding[]> {
  const llama = tinyModel("llama");
  const model = { ...llama, config: { ...llama.config, max_position_embeddings: 4096 } };
  const requests = lengths.map((length, i): EngineRequest => {
    const prompt = Uint32Array.from(noise(`prompt ${i}`, length), (x) => Math.floor((x + 1) * 128));
    return { prompt, maxTokens: 24, sampling: { temperature: 0, logprobs: 2 } };
  });
  const run = (options: Partial<EngineOptions>, isTogether: boolean) =>
    withModel(engine, model, { maxBatch: 16, prefixCaching: false, ...options }, async () => {
      const answers: Promise<Answer[]>[] = [];
      for (const request of requests) {
        const answer = answersOf(engine, model.name, request);
        answers.push(answer);
        if (!isTogether) await answer;
      }
      return (await Promise.all(answers)).flat();
    });
  const alone = await run({}, false);
  const together = await run({}, true);
  const chunked = await run({ tokenBudget: 48 }, true);
  return lengths.flatMap((length, i) => [
    sameButCloseCalls(`${length} tokens, together`, together[i]!, alone[i]!),
    sameButCloseCalls(`${length} tokens, in chunks`, chunked[i]!, alone[i]!),
  ]);
}

/** Difference of log-probabilities below which rounding may reverse the order of two tokens. */
const CLOSE_CALL = 1e-3;

/** Compares all tokens, or only those before the first difference if this is a close call (see CLOSE_CALL). */
function sameButCloseCalls(what: string, found: Answer, expected: Answer): Finding {
  const at = expected.tokens.findIndex((token, i) => token !== found.tokens[i]);
  const [best, second] = expected.events[at]?.top ?? [];
  const isClose = best && second && best.logprob - second.logprob < CLOSE_CALL;
  if (at < 0 || !isClose) return sameTokens(what, found.tokens, expected.tokens);
  return sameTokens(what, found.tokens.slice(0, at), expected.tokens.slice(0, at));
}
