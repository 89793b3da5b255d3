// A grammar thread. It compiles grammars and, if it serves the engine, follows each constrained answer with a matcher
// and writes its next token mask. The engine's messages take precedence over the main thread's: a late mask may delay
// a step, a compile delays only the client that sent the grammar.
import { type MessagePort, parentPort, workerData } from "node:worker_threads";
import { GrammarMatcher } from "@mlc-ai/web-xgrammar";
import { Compiler } from "./compiler.ts";
import { FollowedAnswers } from "./followed-answers.ts";
import {
  type FromGrammarThread,
  type Grammar,
  type ToGrammarThread,
  type ToMatchers,
  type Vocabulary,
  WORK,
} from "./grammar.ts";

const setup = workerData as { maxBytes: number; status: SharedArrayBuffer };
const status = new Int32Array(setup.status);
const compiler = new Compiler(setup.maxBytes);
const main = parentPort!;
const reply = (message: FromGrammarThread) => main.postMessage(message);

type Question = ToGrammarThread & { kind: "load" | "prepare" };

let asked: Question[] = [];
const orders: ToMatchers[] = [];
let engine: MessagePort | undefined;
let answers = new FollowedAnswers(open);
let arrival = Promise.withResolvers<void>();

/** First reason that xgrammar printed: on failure, it prints a position in its source and the reason, then throws. */
let lastPrinted: string | undefined;
console.error = (...printed: unknown[]) => {
  lastPrinted ??= /\.cc:\d+: (.*)/s.exec(printed.join(" "))?.[1];
};
console.warn = console.error;

main.on("message", (message: ToGrammarThread) => {
  if (message.kind === "serve") serve(message.port);
  else if (message.kind === "withdraw") {
    asked = asked.filter((each) => each.kind !== "prepare" || each.id !== message.id);
  } else asked.push(message);
  arrival.resolve();
});

for (;;) {
  const order = orders.shift();
  const question = order ? undefined : asked.shift();
  if (order) {
    // Keeps this engine's answers: another engine, whose answers have the same ids, may connect during the load.
    const own = answers;
    if (order.kind === "open") await load(order.grammar.vocabulary);
    await work(() => own.follow(order));
  } else if (question?.kind === "load") await load(question.vocabulary);
  else if (question?.kind === "prepare") await prepare(question);
  else {
    await arrival.promise;
    arrival = Promise.withResolvers();
  }
}

/** Loads a vocabulary. Errors are ignored: each grammar that needs the vocabulary fails by itself. */
async function load(vocabulary: Vocabulary): Promise<void> {
  await compiler.load(vocabulary).catch(() => {});
}

/** Runs a task and marks the thread as busy: the main thread terminates it if the task takes too long. */
async function work(task: () => Promise<void>): Promise<void> {
  Atomics.add(status, WORK, 1);
  try {
    await task();
  } finally {
    Atomics.add(status, WORK, 1);
  }
}

function serve(port: MessagePort): void {
  engine?.close();
  orders.length = 0;
  answers.close();
  answers = new FollowedAnswers(open);
  engine = port;
  port.on("message", (message: ToMatchers) => {
    // Drops messages of a closed port, which may still arrive.
    if (port !== engine) return;
    orders.push(message);
    arrival.resolve();
  });
}

async function prepare({ id, grammar }: Question & { kind: "prepare" }): Promise<void> {
  try {
    await compiler.load(grammar.vocabulary);
    reply({ kind: "begun", id });
    await work(() => checkBeginning(grammar));
    reply({ kind: "prepared", id });
  } catch (error) {
    const message = reason(error);
    const isBroken = message === undefined;
    reply({ kind: "failed", id, message: message ?? "it cannot be compiled", isBroken });
  }
  // Yields to the event loop, so that messages of the engine arrive.
  await new Promise(setImmediate);
}

/** Throws if the grammar allows no first token: endlessly recursive rules compile, but match no text. */
async function checkBeginning(grammar: Grammar): Promise<void> {
  const matcher = await open(grammar);
  const allowed = await matcher.getNextTokenBitmask();
  matcher.dispose();
  if (allowed.every((word) => word === 0)) throw new Error("it allows no text");
}

async function open(grammar: Grammar): Promise<GrammarMatcher> {
  const compiled = await compiler.compile(grammar);
  return await GrammarMatcher.createGrammarMatcher(compiled, [...grammar.vocabulary.stopTokens]);
}

/** Returns the message for the client; for an error of xgrammar, only its printed text. */
function reason(error: unknown): string | undefined {
  const said = lastPrinted?.trim().replace(/\.$/, "");
  lastPrinted = undefined;
  const isOurs = error instanceof Error && error.constructor === Error;
  return said ?? (isOurs ? error.message : undefined);
}
